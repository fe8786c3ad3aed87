"""What an agent asks of a harness, which takes turns elsewhere and keeps its own memory of them: one small protocol."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from holdfast.agent.model import Piece, ToolSpec
from holdfast.core.errors import Conflict, HoldfastError
from holdfast.core.message import Message, Usage
from holdfast.core.status import NotDone

How = Literal["completed", "limit", "incomplete", "failed"]
"""How an exchange ended. Reaching a cap is a limit and no completion; what broke off before its end is incomplete."""
InDoubt = Literal["again", "raise", "wait"]
"""What follows a creation of which nobody knows whether it happened: another one, both charged; or an error; or a
person's word."""


class Start(Struct, frozen=True, kw_only=True):
    """What stays the same for all exchanges of a turn under way."""

    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    output: Mapping[str, Any] | None = None
    """The JSON Schema that the answer shall have; None for free text."""
    settings: Mapping[str, Any] = {}
    """The agent's `settings=`, as they are."""
    workspace: Path | None = None
    """The directory that the harness works in; the same for every turn."""
    run: str = ""
    conversation: str | None = None
    cursor: Any = None
    """Where the conversation stands, as this harness last said it; None for one that has just begun."""
    version: int = 0
    """The harness's `version` that said it."""


class Ask(Struct, frozen=True, kw_only=True):
    """One exchange: what the harness is told, and from where it goes on."""

    messages: Sequence[Message]
    """All that it was not told yet, in order: what users said, words that steer, and results of calls."""
    cursor: Any = None
    """Where it goes on from. Every attempt at an exchange has the same, so that no chain forks."""
    key: str = ""
    """The idempotency key: the same for one creation, however often it is sent."""


class Told(Struct, frozen=True):
    """Some more of what is said: a preview, of which nothing is kept once the exchange has ended."""

    piece: Piece
    id: str = ""


class Known(Struct, frozen=True):
    """How to find what was created again: plain data. It is on disk before the next event is asked for."""

    handle: Any
    id: str = ""


class Rests(Struct, frozen=True):
    """There is nothing to hear for so long; it is attached to again then. The run rests meanwhile, saying why."""

    why: str
    seconds: float = 5.0
    id: str = ""


class Ended(Struct, frozen=True, kw_only=True):
    """The terminal event: nothing follows it. Its message, its cursor and what it took are one commit.

    A message with calls is one that waits for their results: they are answered, and told in the next exchange. One
    that has not `completed` ends the turn as failed; it is kept where it has a cursor, so that the next turn goes on
    from there, and otherwise the next turn is told again what this one was.
    """

    message: Message | None = None
    cursor: Any = None
    """Where the next exchange goes on from: plain data, and never None for one that completed."""
    how: How = "completed"
    why: str = ""
    """What is told of one that has not completed."""
    usage: Usage = Usage()
    model: str = ""
    id: str = ""


Event = Told | Known | Rests | Ended
"""What an exchange reports. `id` is the provider's own event id, to attach behind; empty where it has none."""


class Session(Protocol):
    """A harness at work for one turn, in one process. It lives no longer than the turn is under way there."""

    def create(self, ask: Ask) -> AsyncIterator[Event]:
        """Begin an exchange, and yield what comes of it: `Known` as early as possible, `Ended` last.

        Raises:
            ModelBusy: it provably did not begin; come back later.
            ModelRefused: it provably did not begin, and will not as it is.
            ModelCut: the stream ended, stalled or broke before `Ended`; simply ending the iteration means the same.
                Behind `Known` it is attached to again; before it, it may or may not have begun.
        """
        ...

    def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncIterator[Event]:
        """Go on with what was created, and yield all that comes strictly behind the event `after`; None: from its
        beginning. Creates nothing.

        `after` is given where this very session was cut off; in another process it is None. May be called at any time,
        also for what has ended: then `Ended` comes again, with the same message and the same cursor.

        Raises:
            ModelBusy, ModelCut: it is attached to again later.
            ModelRefused: nobody knows the handle any more.
        """
        ...

    async def find(self, ask: Ask) -> Any:
        """Look for what was created for this very ask: return its handle, `hf.NOT_DONE` where it provably was not
        created, or None where nobody knows. Asked after a death or a cut that left no handle.
        """
        ...

    async def cancel(self, handle: Any) -> None:
        """End what was created, because the run was cancelled. What has ended is left as it is."""
        ...

    async def close(self) -> None:
        """Let go of connections and processes of this session; what was created elsewhere goes on."""
        ...


class Harness(Protocol):
    """Whoever takes turns elsewhere: a provider's stateful API, a coding CLI, another service."""

    @property
    def name(self) -> str:
        """What conversations are bound to: one that began with it goes on with none of another name."""
        ...

    @property
    def version(self) -> int:
        """The form of its cursors and handles; a newer one than the harness knows is refused before it is opened."""
        ...

    @property
    def lane(self) -> str:
        """Whose rate limit its requests count against: provider, address and a digest of the key, never the key."""
        ...

    @property
    def keyed(self) -> bool:
        """True where a creation sent twice under one key is one creation: then none is ever in doubt."""
        ...

    @property
    def in_doubt(self) -> InDoubt:
        """What follows a creation that may or may not have happened."""
        ...

    @property
    def takes_tools(self) -> bool:
        """True where it can call the agent's tools."""
        ...

    async def open(self, start: Start) -> Session:
        """Return a session that goes on from `start.cursor`; creates nothing elsewhere.

        Raises:
            CursorInvalid: the cursor is none of this harness's. Never begin anew instead.
        """
        ...


class HarnessFailed(HoldfastError):
    """What a harness began came to an end that is none: it failed, was cancelled there, or expired."""

    code = "harness_failed"
    hint = "See what it says there; the next turn of the conversation goes on from the last that was committed."

    def __init__(self, why: str, *, how: str = "failed", usage: Usage | None = None) -> None:
        super().__init__(why)
        self.how, self.usage = how, usage


class HarnessLimit(HarnessFailed):
    """A harness reached its own cap of turns, tokens or time, and has no answer."""

    code = "harness_limit"
    hint = "Raise the cap where the harness has it, or send the conversation another message: it goes on from there."


class HarnessIncomplete(HarnessFailed):
    """What a harness began broke off before it had said all."""

    code = "harness_incomplete"
    hint = "See why it broke off there; send the conversation another message, or retry the run."


class CursorInvalid(HoldfastError):
    """What is stored of where a harness stands cannot be gone on from; nothing was begun."""

    code = "cursor_invalid"
    hint = "Go on with the version of the harness that wrote it, restore it from a backup, or begin a new conversation."

    def __init__(
        self, why: str, *, harness: str, what: Literal["unreadable", "corrupt", "outdated"] = "unreadable"
    ) -> None:
        super().__init__(f"the cursor of harness {harness!r} is {what}: {why}")
        self.harness, self.what, self.why = harness, what, why


class HarnessMismatch(Conflict):
    """A conversation is bound to another harness than the agent has; nothing was begun."""

    code = "harness_mismatch"
    hint = "Go on with an agent that has the conversation's own harness, or begin a new conversation."

    def __init__(self, *, conversation: str, bound: str | None, harness: str | None) -> None:
        super().__init__(
            f"conversation {conversation!r} is bound to {_named(bound)}, and this agent has {_named(harness)}"
        )
        self.conversation, self.bound, self.harness = conversation, bound, harness


def _named(harness: str | None) -> str:
    return f"harness {harness!r}" if harness is not None else "a model, and no harness"


FAILURES: Mapping[str, type[HarnessFailed]] = {
    "limit": HarnessLimit, "incomplete": HarnessIncomplete, "failed": HarnessFailed,
}  # fmt: skip
Found = Any | NotDone | None
