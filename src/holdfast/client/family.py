"""The children of a run, theirs, and how each stands."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from holdfast.client.protocol import Client
from holdfast.core import entry as e
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
    budget: dict[str, Any] | None = None


class Family:
    """Looks up a run's descendants, so many at most."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._left = _MOST
        self.more = 0
        """How many were left out."""

    async def children(self, events: Iterable[Event]) -> Sequence[Kin]:
        """Return the children that a run's events tell of, in the order in which they were spawned."""
        spawned: list[e.ChildSpawned] = []
        for event in events:
            if isinstance(event, e.RunForked):
                spawned.clear()  # what came before are the base's
            elif isinstance(event, e.ChildSpawned):
                spawned.append(event)
        kin: list[Kin] = []
        for event in spawned:
            if self._left == 0:
                self.more += len(spawned) - len(kin)
                break
            self._left -= 1
            kin.append(await self._kin(event))
        return kin

    async def _kin(self, spawned: e.ChildSpawned) -> Kin:
        run = RunId(spawned.child)
        try:
            info = await self._client.info(run)
            below = [event async for event in self._client.events(run, follow=False)]
        except HoldfastError as error:
            return Kin(spawned.child, spawned.name, spawned.step, None, str(error), ())
        return Kin(info.id, info.name, spawned.step, info.status, info.reason, await self.children(below), info.budget)
