"""Where a run that is left rests, and how it ends: each is an entry and a row, and gives up the lease."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.status import Status
from holdfast.engine.adoption import word_of, word_refused
from holdfast.engine.family import farewells
from holdfast.engine.leftover import left_over
from holdfast.store.value import RowChange

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive


async def rest(
    drive: "Drive", status: Status, reason: str, *, due_at: int | None = None, detail: str = "",
    code: str | None = None, word: str | None = None,
) -> None:  # fmt: skip
    """Write where the run rests, whatever was posted meanwhile, and give up the lease.

    With `code` the row names this version as one that refused the run; `word` is what it says of that instead.
    """
    seen = drive.journal.inbox_seq
    # A post that came since the last look refuses this once; being beyond what was seen, it wakes the run at once.
    while not await park(drive, status, reason, due_at=due_at, detail=detail, code=code, word=word, seen=seen):
        pass


async def rest_again(drive: "Drive", status: Status, reason: str, *, progress: bool) -> bool:
    """Give up the lease of a run that was woken for nothing; False when a post came that nobody has looked at."""
    row = drive.lease.row
    change = RowChange(status=status, reason=reason, refused=row.refused, seen_seq=drive.journal.inbox_seq)
    return await drive.written(drive.outbox.append(change=change, progress=progress))


async def park(
    drive: "Drive", status: Status, reason: str, *, due_at: int | None = None, step: str | None = None,
    detail: str = "", code: str | None = None, word: str | None = None, waits: Sequence[e.Wait] = (),
    consumed: Sequence[int] = (), seen: int | None = None,
) -> bool:  # fmt: skip
    """Write where the run rests, and give up the lease; False when a post came that nobody has looked at."""
    refused = word_refused(drive) if code is not None else word_of(drive) if word is None else word
    entry = e.RunParked(
        status=status, reason=reason, detail=detail, step=step, due_at=due_at, code=code, waits=list(waits)
    )
    change = RowChange(
        status=status,
        reason=f"{reason}: {detail}" if detail else reason,
        due_at=due_at,
        refused=refused,
        seen_seq=drive.journal.inbox_seq if seen is None else seen,
    )
    drive.resting = True
    written = await drive.written(drive.outbox.append(entry, change=change, consumed=consumed))
    drive.resting = written
    return written


async def finish(
    drive: "Drive", entry: e.RunFinished, blobs: Sequence[Any] = (), *, result: Raw | None = None,
    unless: Callable[[], bool] | None = None,
) -> bool:  # fmt: skip
    """Write the ending, tell the parent and the children of it, and give up the lease; False if not, `unless` says so.

    `result` is what the parent is told where it does not stand in the ending.
    """
    purse = drive.purse
    while unless is None or not unless():
        drive.resting = True
        change = RowChange(status=entry.status, reason=entry.reason, refused=word_of(drive))
        charged, paid = purse.close() if purse is not None else ((), {})
        posts = farewells(drive.lease.row, drive.children.values(), entry, purse, result)
        drop = ("*",) if drive.chunks else ()
        untold, turns = left_over(drive)
        waiting = drive.outbox.append(
            *charged, entry, change=change, guarded=True, blobs=blobs, posts=posts, drop=drop, consumed=untold,
            children=turns, **paid,
        )  # fmt: skip
        if await drive.written(waiting):
            return True
        drive.resting = False
        await drive.waits.look()
        if drive.cancel_asked and entry.status is not Status.CANCELLED:
            # It was asked for before the ending was written: who asked was told that it counts.
            entry, blobs, result, unless = drive.cancelling.ending(entry.error), (), None, None
    return False
