"""What a PostgreSQL client and its server say to each other, followed closely enough to know what a request ends."""

import re
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

CANCEL_REQUEST: Final = 80877102
SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
_BODY: Final = re.compile(r"\$(\w*)\$.*?\$\1\$", re.DOTALL)
_VERB: Final = re.compile(
    r"(?:^|;)\s*(?:(?P<begins>BEGIN|START\s+TRANSACTION)|(?P<commits>COMMIT|END)|(?P<undoes>ROLLBACK(?!\s+TO)|ABORT))\b",
    re.IGNORECASE,
)


class Message(NamedTuple):
    """One message: its type (empty for the first of a client), what it says, and its bytes as they came."""

    kind: bytes
    body: bytes
    raw: bytes


class Splitter:
    """Cuts a stream of bytes into messages."""

    def __init__(self, *, greets: bool) -> None:
        self._typed = not greets
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield each message that is complete by now."""
        self._rest += data
        while (message := self._next()) is not None:
            self._rest = self._rest[len(message.raw) :]
            yield message

    def greeted(self) -> None:
        """From here on messages have a type."""
        self._typed = True

    def _next(self) -> Message | None:
        head = 1 if self._typed else 0
        if len(self._rest) < head + 4:
            return None
        size = head + struct.unpack_from("!I", self._rest, head)[0]
        if len(self._rest) < size:
            return None
        raw = self._rest[:size]
        return Message(raw[:head], raw[head + 4 :], raw)


def code(greeting: Message) -> int:
    """Return what a client's first message asks for: a version of the protocol, or one of the requests above."""
    return int(struct.unpack_from("!I", greeting.body)[0])


class After(Enum):
    """What a request leaves behind."""

    OPEN = "a transaction goes on"
    COMMITTED = "all that was asked for is written"
    UNDONE = "the transaction is taken back"


@dataclass(frozen=True, slots=True)
class Request:
    """Everything up to the point where the server will say that it is ready again.

    `text` is all that its transaction has asked for so far, and `after` what it will leave if nothing fails.
    """

    text: str
    after: After


@dataclass(slots=True)
class Conversation:
    """One connection's requests, in the order in which they are answered; requests may run ahead of answers."""

    _prepared: dict[bytes, str] = field(default_factory=dict)
    _asking: list[str] = field(default_factory=list)
    _transaction: list[str] = field(default_factory=list)
    _open: bool = False
    _unanswered: deque[Request] = field(default_factory=deque)

    @property
    def answering(self) -> Request | None:
        """The request that the server's next words belong to; None while it is not yet asked in full."""
        return self._unanswered[0] if self._unanswered else None

    def ask(self, message: Message) -> Request | None:
        """Take a client's message in; return the request that it completes."""
        match message.kind:
            case b"P":
                name, query = message.body.split(b"\0")[:2]
                self._prepared[name] = query.decode(errors="replace")
            case b"B":
                name = message.body.split(b"\0")[1]
                self._asking.append(self._prepared.get(name, ""))
            case b"Q":
                self._asking.append(message.body.rstrip(b"\0").decode(errors="replace"))
                return self._complete()
            case b"S" | b"F":
                return self._complete()
        return None

    def answer(self, message: Message) -> Request | None:
        """Take a server's message in; return the request that it ends."""
        if message.kind != b"Z" or not self._unanswered:
            return None
        done = self._unanswered.popleft()
        if not self._unanswered:
            # Only now is what the server says true of everything asked.
            self._open = message.body != b"I"
            if not self._open:
                self._transaction.clear()
        return done

    def _complete(self) -> Request:
        self._transaction += self._asking
        after = _after(self._asking, opened=self._open)
        self._asking.clear()
        request = Request("; ".join(self._transaction), after)
        self._open = after is After.OPEN
        if not self._open:
            self._transaction.clear()
        self._unanswered.append(request)
        return request


def _after(asked: Sequence[str], *, opened: bool) -> After:
    after = After.OPEN if opened else After.COMMITTED
    for text in asked:
        for verb in _VERB.finditer(_BODY.sub("", text)):
            kinds = {"begins": After.OPEN, "commits": After.COMMITTED, "undoes": After.UNDONE}
            after = kinds[str(verb.lastgroup)]
    return after
