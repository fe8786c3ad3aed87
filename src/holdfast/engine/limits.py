"""Waiting for a slot of a limit, in the process that drives the run."""

from holdfast.core.errors import Lost
from holdfast.core.limit import Limit
from holdfast.engine.drive import Drive
from holdfast.store.value import LeaseLost, Queued


async def take_slot(drive: Drive, step: str, limit: Limit) -> None:
    """Return when the step has a slot of its limit. Whatever ends the step gives it back by `freed`.

    Raises:
        Lost: the lease is gone, and with it the step's place.
        CancelledError: the run is to be handed over, and has no effect under way.
    """
    # Listen before asking: a slot that is handed on between the two then wakes us instead of being missed.
    bell = drive.store.watch(drive.lease.row.run, entries=False)
    try:
        while (queued := await _asked(drive, step, limit)) is not None:
            if drive.handing:
                await drive.leave()
            await bell.wait(max(0.0, (queued.ask_again_at - drive.store.now()) / 1e6))
    finally:
        bell.close()


async def _asked(drive: Drive, step: str, limit: Limit) -> Queued | None:
    """Ask for a slot; None when the step has one."""
    turn = await drive.answer(drive.store.acquire(drive.lease, step, limit))
    if isinstance(turn, LeaseLost):
        raise drive.halt(Lost(f"the lease of run {drive.lease.row.run} is gone"))
    return turn if isinstance(turn, Queued) else None
