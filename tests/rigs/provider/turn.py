"""What the provider says next, and how it fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Cut = Literal["fin", "silent", "rst", "stall", "end", "malformed", "broken_utf8", "error"]
"""What happens after the k-th token.

`fin` closes the connection within the body, `silent` closes one whose body has no stated end, `end` ends the body in
order, `malformed`, `broken_utf8` and `error` send what their names say, and then the rest as if nothing had been.
"""
CUTS: Final[Sequence[Cut]] = ("fin", "silent", "rst", "stall", "end", "malformed", "broken_utf8", "error")
Flaw = Literal["unterminated", "doubled", "split_utf8", "half_call", "half_call_fin"]
"""What is odd about a stream as a whole."""


@dataclass(frozen=True)
class Call:
    """A tool that the model asks for."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True)
class Answer:
    """What the model says, token by token."""

    tokens: Sequence[str] = ()
    calls: Sequence[Call] = ()
    reasoning: Sequence[str] = ()
    cached: int = 0
    short: bool = False
    """Its length was used up, as it says at its end."""
    fails: bool = False
    """It ends as a failure; only what is kept can say so."""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.tokens)

    @property
    def input_tokens(self) -> int:
        """What the question is counted as."""
        return 20

    @property
    def output_tokens(self) -> int:
        """What the answer is counted as."""
        return len(self.tokens) + len(self.reasoning) + 5 * len(self.calls)


@dataclass(frozen=True)
class Fault:
    """How a turn fails: a cut after the k-th token, a flaw of the stream, or a status instead of it."""

    cut: Cut | None = None
    after: int = 0
    after_events: int | None = None
    """Cuts after so many events instead of tokens."""
    flaw: Flaw | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    created: bool = False
    """The generation was made and is charged, though the reply says otherwise."""


@dataclass(frozen=True)
class Turn:
    """One reply to one request."""

    answer: Answer = field(default_factory=Answer)
    fault: Fault = field(default_factory=Fault)
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_seconds: float = 0.0
    """How long it thinks between two pieces of a stream."""
    later: Sequence[Fault] = ()
    """How the requests fail that ask for the same generation again, one after the other."""
    holds_after: int | None = None
    """After how many events it thinks until somebody listens again, or it is cancelled."""
