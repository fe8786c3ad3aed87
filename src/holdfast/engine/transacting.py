"""A step's own writes and the entry that records it, in one transaction of the store."""

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.core import entry as e
from holdfast.core.errors import StoreRefused, StoreUnavailable
from holdfast.engine.drive import Drive
from holdfast.store.protocol import Transaction
from holdfast.store.value import Committed, InboxMoved, Outcome


async def transact(
    drive: Drive, work: Callable[[Transaction], e.Entry], *, deadline_seconds: float, **rest: Any
) -> None:
    """Call `work` in a transaction of the store and append the entry that it returns there."""
    while True:
        if drive.handing:
            await drive.leave()
        # Its own task, so that a cancellation of the code cannot part the transaction from its outcome.
        waiting = asyncio.ensure_future(_alone(drive, work, deadline_seconds, rest))
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                if drive.stopping:
                    raise
                drive.mark_late()
            except Exception:
                break
        try:
            outcome = waiting.result()
        except (StoreUnavailable, StoreRefused) as error:
            raise drive.unanswered(error) from error
        if isinstance(outcome, Committed):
            if drive.suspect:
                drive.acquit()
            if drive.handing:
                await drive.leave()
            return
        if not isinstance(outcome, InboxMoved):
            drive.raise_lost()
        await drive.waits.look()
        await drive.cancelling.withhold()


async def _alone(
    drive: Drive, work: Callable[[Transaction], e.Entry], deadline_seconds: float, rest: dict[str, Any]
) -> Outcome:
    await drive.outbox.alone()
    try:
        outcome = await drive.journal.transact(work, deadline_seconds=deadline_seconds, **rest)
        drive.outbox.refused(outcome)
        return outcome
    finally:
        drive.outbox.done()
