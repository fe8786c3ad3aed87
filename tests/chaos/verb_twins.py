"""Deliberately broken twins of the verbs that wait and create, and of what is done around any step."""

import uuid
from collections.abc import Callable
from typing import Any, Final

from holdfast.core import limits
from holdfast.engine.context import Context
from holdfast.engine.drive import Drive
from holdfast.engine.verb import Verb
from holdfast.journal import replay as r
from holdfast.store import point


def _takes_first(place: str) -> None:
    """A post is taken out of the inbox before what it says is written."""
    write = Drive.write

    async def write_late(self: Drive, *entries: Any, consumed: Any = (), **rest: Any) -> None:
        if consumed and entries:
            await write(self, consumed=consumed)
            point.reached("taken")
            consumed = ()
        await write(self, *entries, consumed=consumed, **rest)

    Drive.write = write_late  # type: ignore[method-assign]


def _spawns_first(place: str) -> None:
    """A child is created before its parent's journal has it."""
    write = Drive.write

    async def write_late(self: Drive, *entries: Any, children: Any = (), **rest: Any) -> None:
        if children:
            await write(self, children=children)
            point.reached("spawned")
        await write(self, *entries, **rest)

    Drive.write = write_late  # type: ignore[method-assign]


def _slides(place: str) -> None:
    """A wait that goes on after a death lasts as long again, unless it is over."""
    begin = Verb.begin

    async def begin_anew(self: Verb, due_at: int | None, waits: Any) -> int | None:
        due = await begin(self, due_at, waits)
        over = due is None or due <= self._drive.store.now()
        return due if over or not isinstance(self._answer, r.Waiting) else due_at

    Verb.begin = begin_anew  # type: ignore[method-assign]


def _expires_early(place: str) -> None:
    """A question that is still open after a death has expired, whatever answers have come."""
    wait = Verb.wait

    async def wait_no_more(self: Verb, *args: Any, **rest: Any) -> Any:
        return None if isinstance(self._answer, r.Asked) else await wait(self, *args, **rest)

    async def write_unheard(self: Drive, entry: Any) -> bool:
        await self.write(entry)
        return True

    Verb.wait = wait_no_more  # type: ignore[method-assign]
    Drive.write_if_heard = write_unheard  # type: ignore[method-assign]


def _performs_thrice(place: str) -> None:
    """A step's function is called three times for one result."""
    perform = Drive.perform

    async def perform_thrice(self: Drive, *args: Any) -> Any:
        for _ in range(2):
            await perform(self, *args)
        return await perform(self, *args)

    Drive.perform = perform_thrice  # type: ignore[method-assign,assignment]


def _chance_anew(place: str) -> None:
    """Every life draws ids of its own."""
    Context.uuid = lambda self: uuid.uuid4()  # type: ignore[method-assign]


def _gives_up(place: str) -> None:
    """One death without progress is enough to set a run aside."""
    limits.STALLS = 1  # type: ignore[misc]


VERB_TWINS: Final[dict[str, Callable[[str], None]]] = {
    "takes_first": _takes_first,
    "spawns_first": _spawns_first,
    "slides": _slides,
    "expires_early": _expires_early,
    "performs_thrice": _performs_thrice,
    "chance_anew": _chance_anew,
    "gives_up": _gives_up,
}
