"""Waiting for a slot of a limit, in the process that drives the run."""

import asyncio

from holdfast.core.errors import Lost
from holdfast.core.limit import Limit
from holdfast.engine.drive import Drive
from holdfast.store.value import LeaseLost, Queued


class Line:
    """The steps of one run that wait for slots of one limit, in the order in which they asked.

    Slots come in that order too, so only the first listens and looks; when it has its slot the next one does. Were all
    of them to look whenever one is served, each of a thousand branches would be asked for a thousand times.
    """

    def __init__(self) -> None:
        self._places: list[asyncio.Future[None]] = []

    def join(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        """Take the last place; it is done once it is the first."""
        place = loop.create_future()
        self._places.append(place)
        self._move_up()
        return place

    def leave(self, place: "asyncio.Future[None]") -> None:
        """Give a place up."""
        self._places.remove(place)
        self._move_up()

    def _move_up(self) -> None:
        if self._places and not self._places[0].done():
            self._places[0].set_result(None)


async def take_slot(drive: Drive, step: str, limit: Limit) -> None:
    """Return when the step has a slot of its limit. Whatever ends the step gives it back by `freed`.

    Raises:
        Lost: the lease is gone, and with it the step's place.
        CancelledError: the run is to be handed over, and has no effect under way.
    """
    line = drive.lines.setdefault((limit.name, limit.priority), Line())
    place = line.join(drive.loop)
    # Listen before asking: a slot that is handed on between the two then wakes us instead of being missed.
    bell = drive.store.watch(drive.lease.row.run, entries=False) if place.done() else None
    try:
        while (queued := await _asked(drive, step, limit)) is not None:
            if drive.handing:
                await drive.leave()
            seconds = max(0.0, (queued.ask_again_at - drive.store.now()) / 1e6)
            if bell is not None:
                await bell.wait(seconds)
            else:
                # Whoever is not the first looks now and then all the same: another process may think otherwise.
                await asyncio.wait({place}, timeout=seconds)
                bell = drive.store.watch(drive.lease.row.run, entries=False) if place.done() else None
    finally:
        line.leave(place)
        if bell is not None:
            bell.close()


async def _asked(drive: Drive, step: str, limit: Limit) -> Queued | None:
    """Ask for a slot; None when the step has one."""
    turn = await drive.answer(drive.store.acquire(drive.lease, step, limit))
    if isinstance(turn, LeaseLost):
        raise drive.halt(Lost(f"the lease of run {drive.lease.row.run} is gone"))
    return turn if isinstance(turn, Queued) else None
