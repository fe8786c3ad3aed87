"""What posts say: the bodies of messages to a run, by kind."""

from typing import Final

from msgspec import Raw, Struct

from holdfast.core.codec import NULL
from holdfast.core.entry import BlobRef, ErrorInfo
from holdfast.core.status import Status

SIGNAL: Final = "signal"
ANSWER: Final = "answer"
CALLBACK: Final = "callback"
RESOLVE: Final = "resolve"
SETTLED: Final = "settled"
CANCEL: Final = "cancel"
PAUSE: Final = "pause"
RESUME: Final = "resume"
RETRY: Final = "retry"
RAISE: Final = "raise"
STEER: Final = "steer"
CONTROLS: Final = (CANCEL, PAUSE, RESUME, RETRY, RAISE, STEER)
"""Kinds that are asked of a run as such, wherever it rests; they keep it from acting before it has seen them."""


class SignalBody(Struct, frozen=True, omit_defaults=True):
    """A signal: its name and what it carries."""

    name: str
    value: Raw = NULL
    by: str | None = None


class SteerBody(Struct, frozen=True, omit_defaults=True):
    """A word to an agent at work: taken in before it is generated for next."""

    text: str
    by: str | None = None
    key: str | None = None
    """The key of the turn that it becomes if the run ends before it is taken in."""


class AnswerBody(Struct, frozen=True, omit_defaults=True):
    """An answer: to which question, and for what was shown."""

    step: str
    yes: bool
    shown: str
    by: str | None = None
    note: str | None = None
    args: Raw = NULL


class CallbackBody(Struct, frozen=True, omit_defaults=True):
    """What a callback token brings for a wait: to which step, and what it carries."""

    step: str
    value: Raw = NULL
    by: str | None = None


def steer_key(key: str) -> str:
    """Return the key of a word to an agent: the same one is told once."""
    return f"{STEER}/{key}"


def answer_key(run: str, asked_seq: int) -> str:
    """Return the key of the answer to a question: there is one, whoever gives it."""
    return f"{ANSWER}/{run}.{asked_seq}"


def callback_key(step: str, attempt: int) -> str:
    """Return the key of what a token brings for a wait: one, or one more after the last could not be read."""
    return f"{CALLBACK}/{step}/{attempt}"


class Resolution(Struct, frozen=True):
    """A person's word about a step in doubt."""

    step: str
    done: bool
    value: Raw = NULL
    by: str | None = None
    note: str | None = None


class Settlement(Struct, frozen=True, omit_defaults=True):
    """How a child ended, told to its parent."""

    child: str
    status: Status
    value: Raw = NULL
    blob: BlobRef | None = None
    error: ErrorInfo | None = None
    reason: str = ""
    spent: dict[str, int] | None = None
    """Of its budget, with what its own children spent."""
    over: dict[str, int] = {}
    """What of that it has overdrawn."""
    unknown: list[str] = []
    """Of which channels something was spent that nobody counted."""


class Raise(Struct, frozen=True, omit_defaults=True):
    """What is added to a run's budget: so much of each channel, and until when it may go on."""

    steps: int = 0
    calls: int = 0
    tokens: int = 0
    usd: int = 0
    """In nano-USD."""
    deadline: int | None = None
    was: int | None = None
    """Only for one whose deadline this is: it was inherited, and is raised with its parent's."""
    by: str | None = None
    reason: str = ""


class Control(Struct, frozen=True, omit_defaults=True):
    """Who asked for an end, a pause or its end, and why."""

    by: str | None = None
    reason: str = ""
