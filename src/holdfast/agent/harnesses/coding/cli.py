"""A coding program as data: how it is called, how a session is resumed, and what the lines mean that it writes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from holdfast.agent.model import Piece
from holdfast.core.codec import encode
from holdfast.core.message import Usage

How = Literal["completed", "limit", "busy", "cut", "refused", "no_session", "session_taken"]
"""How a program says that its turn ended.

A `limit` is a cap of its own; after `busy` and `cut` the session is resumed later; what was `refused` will not be
answered as it is; `no_session` is said of a session that cannot be resumed, and `session_taken` of a new one whose name
is not free.
"""


class Named(Struct, frozen=True):
    """The program tells which session this is."""

    session: str


class Spoke(Struct, frozen=True):
    """A whole text that was said; the last one of a turn is its answer where the end does not repeat it."""

    text: str
    model: str = ""


class Took(Struct, frozen=True):
    """What one answer of the model took, known before the end of the turn; a later word on the same id replaces it."""

    id: str
    usage: Usage


class Over(Struct, frozen=True, kw_only=True):
    """The last word of a turn."""

    how: How
    text: str | None = None
    why: str = ""
    usage: Usage | None = None
    """What this start of the program took, where it says that."""
    totals: Usage | None = None
    """What the session has taken since it began, where it says that; a cost that is no total of the session's too."""


Heard = Piece | Named | Spoke | Took | Over
Event = Mapping[str, Any]
Read = Callable[[Event], Iterable[Heard]]
"""Says what an event means; nothing for one that does not matter, or that is not known."""


class Cli(Struct, frozen=True, kw_only=True):
    """A coding program that works without a person and writes an event of JSON on each line.

    The words of its command are taken as they are, but for `{session}`, `{model}`, `{instructions}`, which may be
    `{instructions:json}`, and `{prompt}`. A prompt that no word has is written to its standard input, which ends there.
    """

    name: str
    """What a conversation is bound to."""
    command: Sequence[str]
    fresh: Sequence[str] = ()
    """The words that begin a session; with `{session}` among them its name is chosen before it is begun."""
    resume: Sequence[str]
    """The words that go on with one."""
    model: Sequence[str] = ()
    instructions: Sequence[str] = ()
    last: Sequence[str] = ()
    read: Read
    why_not: Callable[[str], How | None]
    """Says what it complains of on standard error, where that is one of the reasons that are acted upon."""
    install: str
    """What to do where it is missing."""
    passes: Sequence[str] = ()
    """The variables of the environment that it gets besides the common ones; `*` stands for anything."""

    @property
    def chooses(self) -> bool:
        """True where the name of a session is chosen, and not told."""
        return any("{session}" in word for word in self.fresh)

    def words(
        self, *, session: str | None, resumes: bool, model: str | None, instructions: str, prompt: str,
        more: Sequence[str] = (),
    ) -> list[str]:  # fmt: skip
        """Return the command of one start."""
        own = [*self.command, *(self.resume if resumes else self.fresh)]
        own += [*(self.model if model else ()), *(self.instructions if instructions else ())]
        values = {
            "session": session or "", "model": model or "", "prompt": prompt,
            "instructions": instructions, "instructions:json": encode(instructions).decode(),
        }  # fmt: skip
        return [*(_filled(word, values) for word in own), *more, *(_filled(word, values) for word in self.last)]

    def given(self, prompt: str) -> bytes:
        """Return what it reads."""
        return b"" if any("{prompt}" in word for word in (*self.last, *self.fresh, *self.resume)) else prompt.encode()


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        if f"{{{name}}}" in word:
            return word.replace(f"{{{name}}}", value)
    return word
