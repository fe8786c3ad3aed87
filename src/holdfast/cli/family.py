"""The children of a run, theirs, and how each stands."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from rich.text import Text

from holdfast import events as ev
from holdfast.cli.questions import changing
from holdfast.cli.saying import raising, waiting
from holdfast.cli.surface import Surface, shown
from holdfast.cli.table import COLOURS
from holdfast.client.protocol import Client
from holdfast.core.errors import HoldfastError
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.stream.event import Event

_MOST: Final = 100
"""How many descendants are looked up; a wider tree is cut, and says so."""


class Kin(Struct, frozen=True):
    """A child, and its own children."""

    id: str
    name: str
    step: str
    status: Status | None
    """None for one that is not here, or cannot be read."""
    reason: str
    children: Sequence["Kin"]


class Family:
    """Looks up a run's descendants, so many at most."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._left = _MOST
        self.more = 0
        """How many were left out."""

    async def children(self, events: Iterable[Event]) -> Sequence[Kin]:
        """Return the children that a run's events tell of, in the order in which they were spawned."""
        spawned: list[ev.ChildSpawned] = []
        for event in events:
            if isinstance(event, ev.RunForked):
                spawned.clear()  # what came before are the base's
            elif isinstance(event, ev.ChildSpawned):
                spawned.append(event)
        kin: list[Kin] = []
        for event in spawned:
            if self._left == 0:
                self.more += len(spawned) - len(kin)
                break
            self._left -= 1
            kin.append(await self._kin(event))
        return kin

    async def _kin(self, spawned: ev.ChildSpawned) -> Kin:
        run = RunId(spawned.child)
        try:
            info = await self._client.info(run)
            below = [event async for event in self._client.events(run, follow=False)]
        except HoldfastError as error:
            return Kin(spawned.child, spawned.name, spawned.step, None, str(error), ())
        return Kin(info.id, info.name, spawned.step, info.status, info.reason, await self.children(below))


def lines_of(children: Sequence[Kin], more: int, before: str = "") -> Iterator[Text]:
    """Yield the tree, a line for each."""
    for place, child in enumerate(children, 1):
        last = place == len(children) and not more
        status = str(child.status) if child.status is not None else "unknown"
        style = COLOURS[child.status] if child.status is not None else "red"
        rests = child.status is None or not child.status.terminal or child.status is Status.FAILED
        why = f"  {waiting(child.reason)}" if rests and child.reason else ""
        corner = f"{before}{'└' if last else '├'} "
        yield Text.assemble((corner, "dim"), shown(child.name), f"  {child.id}  ", (status, style), (why, "dim"))
        yield from lines_of(child.children, 0, f"{before}{'  ' if last else '│ '}")
    if more:
        yield Text(f"└ and {more:,} more", style="dim")


async def needs_of(surface: Surface, client: Client, children: Sequence[Kin]) -> Sequence[str]:
    """Return the commands by which descendants go on that wait for a person's answer or have used up their budget."""
    ways: list[str] = []
    for child in children:
        if child.status is Status.EXHAUSTED:
            ways.append(raising(surface, child.id, child.reason))
        elif child.status is Status.WAITING and child.reason.partition(":")[0] == "ask":
            for question in await client.questions(RunId(child.id)):
                ways += [surface.command("answer", question.id), *changing(surface, question)]
        ways += await needs_of(surface, client, child.children)
    return ways
