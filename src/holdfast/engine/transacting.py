"""A step's own writes and the entry that records it, in one transaction of the store."""

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.budget import paying
from holdfast.core.errors import StoreRefused, StoreUnavailable
from holdfast.engine import witness
from holdfast.engine.drive import Drive
from holdfast.engine.payload import store_value
from holdfast.store.protocol import Transaction
from holdfast.store.value import Committed, InboxMoved, Outcome

if TYPE_CHECKING:
    from holdfast.engine.effects import StepCall


class _Undone(Exception):
    """Carries an error out of a transaction step, whose writes are thereby rolled back."""


async def transact(call: "StepCall", attempt: int) -> Any:
    """Run the function and write its entry in one transaction: it happens exactly as often as it is recorded."""
    drive, back = call.drive, None

    def work(transaction: Transaction) -> e.Entry:
        nonlocal back
        try:
            value = call.code.function(transaction, *call.args, **call.keywords)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError("a transaction step is a plain function, not an async one")
            witness.performed(drive.lease, call.key, attempt)
            raw, blob, _, back = store_value(call.codec, value, f"the result of {call.key}", drive.secrets)
            if blob is not None:
                raise ValueError(f"a transaction step's result may be at most {limits.INLINE_BYTES:,} bytes")
        except BaseException as error:
            raise _Undone from error
        return e.StepCompleted(step=call.key, digest=call.digest, attempt=attempt, usage=call.usage, raw=raw)

    moves = paying(call.usage)
    try:
        deadline = call.timeout if call.timeout is not None else limits.TRANSACTION_SECONDS
        freed = (call.key,) if call.slot else ()
        await _write(drive, work, deadline_seconds=deadline, freed=freed, budget=moves)
    except _Undone as undone:
        cause = undone.__cause__
        assert cause is not None
        return await call.failed(cause, attempt, 0)
    except TimeoutError as error:
        return await call.failed(error, attempt, 0)
    if drive.purse is not None:
        drive.purse.paid(moves)
    return back


async def _write(drive: Drive, work: Callable[[Transaction], e.Entry], *, deadline_seconds: float, **rest: Any) -> None:
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
                if drive.unwinding:
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
