"""The course of a run under one lease: load it, run its code, and write how it ends or rests."""

import asyncio
from typing import Any

from msgspec.structs import replace

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.errors import (
    Damaged,
    Diverged,
    HoldfastError,
    InvalidValue,
    NotFound,
    Parked,
    StoreRefused,
    UnknownEntry,
)
from holdfast.core.post import CANCEL, PAUSE, RESUME, RETRY
from holdfast.core.status import Status
from holdfast.core.version import CodeVersion, adopted, left_to_others, refusing
from holdfast.engine.adoption import adopt, keeper_of
from holdfast.engine.budget import Alarm, hear_raises, is_overdue, may_go_on, rest_overdue
from holdfast.engine.context import Context
from holdfast.engine.continuing import Continued
from holdfast.engine.divergence import rest_diverged
from holdfast.engine.drive import Drive
from holdfast.engine.function import Durable
from holdfast.engine.payload import is_failure, message_of, raised, store_value
from holdfast.engine.presence import may_drive
from holdfast.engine.resting import finish, park, rest, rest_again
from holdfast.engine.trace import traced
from holdfast.store.value import Commit, RowChange, RunRow


async def follow(drive: Drive, function: Durable[Any, ...]) -> None:
    """Load a run, drive its code, and write how it ends or rests."""
    try:
        await drive.load()
    except (Damaged, UnknownEntry, InvalidValue) as error:
        await _set_aside(drive, error)
        return
    elsewhere, aside = await _is_others(drive), _aside(drive.lease.row)
    if elsewhere and await _is_left(drive, elsewhere, aside):
        return
    rested = drive.state.status in (Status.PAUSED, Status.EXHAUSTED) and not drive.rehearsing
    if (aside is not None or rested) and await _rests_again(drive, aside):
        return
    if drive.lease.why != "started":
        _write_resumed(drive)
    drive.catching.pending = not drive.replay.is_empty
    if not elsewhere:
        await adopt(drive, function)
    drive.function = function
    if drive.journal.control_seq:
        await drive.waits.look()
    if drive.cancel_asked and (drive.replay.is_empty or aside is not None or elsewhere or drive.lease.row.behind):
        # Its code has done nothing yet that could be cleaned up; or is not here; or is what it was set aside for; or it
        # is another turn's time to act.
        await finish(drive, drive.cancelling.ending())
        return
    if is_overdue(drive):
        await rest_overdue(drive)
        return
    continued: Continued | None = None
    alarm = Alarm(drive)
    alarm.set()
    try:
        while continued := await _run(drive, function, continued.body if continued is not None else None):
            await _continue(drive, continued)
    except (Parked, asyncio.CancelledError) as left:
        if alarm.rang:
            await _leave_overdue(drive)
        elif not isinstance(left, Parked):
            raise
    finally:
        alarm.stop()


async def _leave_overdue(drive: Drive) -> None:
    """Let a run rest whose code was stopped for its deadline; one whose end was asked for meanwhile ends."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    drive.waits.close()
    if drive.cancel_asked:
        await finish(drive, drive.cancelling.ending())
    else:
        await rest_overdue(drive)


async def _is_others(drive: Drive) -> CodeVersion | None:
    """Return the version that alone may drive the run, or the later one that has it; None when this one may."""
    started = drive.origin.started
    assert started is not None
    if drive.lease.row.pin:
        own = started.code == drive.code
        return None if own else CodeVersion(name=started.name, code=started.code)
    return await keeper_of(drive)


async def _is_left(drive: Drive, version: CodeVersion, aside: str | None) -> bool:
    """Let a run that this worker was given and may not have rest until a worker comes that may; say whether it does.

    One whose end was asked for is left only to a worker that is there, whose code cleans up; and what that code is not
    called for, any may end.
    """
    row = drive.lease.row
    word = row.refused if row.pin else adopted(row.refused, version.place)
    seen = drive.journal.inbox_seq
    if await _end_is_asked(drive):
        if aside is not None or not may_drive(await drive.answer(drive.store.workers()), row.name, word):
            return False
        # What was asked stays unseen, so that it is found if they all go; whoever may not have the run is not given it.
        word, seen = left_to_others(word), row.seen_seq
    if row.pin:
        reason, detail = "pinned", f"it was started with version {version.code} and is pinned to it"
    else:
        reason, detail = "outdated", f"version {version.code} has taken it over, which is later than {drive.code}"
    now = drive.store.now()
    while not await park(drive, Status.WAITING, reason, due_at=now, detail=detail, word=word, seen=seen):
        pass  # a post came since the last look; being beyond what was seen, it wakes the run at once
    return True


async def end(drive: Drive) -> None:
    """End a run whose end was asked for, or write what it was raised by, though nobody has its code."""
    try:
        await drive.load()
    except (Damaged, UnknownEntry, InvalidValue) as error:
        await _set_aside(drive, error)
        return
    exhausted = drive.state.status is Status.EXHAUSTED
    if exhausted and await _rests_again(drive, None):
        return
    if drive.lease.why != "started":
        _write_resumed(drive)
    await drive.waits.look()
    if drive.cancel_asked:
        await finish(drive, drive.cancelling.ending())
    elif exhausted:
        # What it was raised by is written; who has its code goes on with it.
        await rest(drive, Status.WAITING, "raised", due_at=drive.store.now())


def _write_resumed(drive: Drive) -> None:
    """Write that this worker took the run up; what follows is behind it."""
    lease = drive.lease
    entry = e.RunResumed(
        worker=lease.worker, fence=lease.fence, attempt=lease.row.attempt, why=lease.why, code=drive.code
    )
    drive.write_soon(entry, progress=False, drop=("*",))


def _aside(row: RunRow) -> str | None:
    """Say why a run that was woken only to be asked for something is not to be driven; None for any other."""
    if row.status is Status.QUARANTINED:
        return row.reason
    if row.stalls > limits.STALLS:
        return f"no_progress: {row.stalls - 1} workers died or gave up without a new entry"
    return None


async def _end_is_asked(drive: Drive) -> bool:
    posts = await drive.answer(drive.store.inbox(drive.lease.row.run))
    return drive.cancel_asked or any(post.kind == CANCEL for post in posts)


async def _rests_again(drive: Drive, aside: str | None) -> bool:
    """Let a run that is paused, exhausted or set aside rest on, unless it was asked for more; say whether it does."""
    exhausted = aside is None and drive.state.status is Status.EXHAUSTED
    while True:
        await hear_raises(drive)
        posts = await drive.answer(drive.store.inbox(drive.lease.row.run))
        if drive.cancel_asked or any(post.kind == CANCEL for post in posts):
            return False
        pauses = [post.kind for post in posts if post.kind in (PAUSE, RESUME)]
        tried_again = any(post.kind == RETRY and post.seq > drive.lease.row.seen_seq for post in posts)
        # By what is left, and not by what was posted: who died after he wrote down a raise must not have lost it.
        goes_on = may_go_on(drive) if exhausted else pauses[-1:] == [RESUME]
        if tried_again if aside is not None else goes_on:
            return False
        status, reason = drive.state.status, drive.lease.row.reason
        if aside is not None:
            status, reason = Status.QUARANTINED, aside
        if await rest_again(drive, status, reason, progress=aside is None):
            return True


async def _run(drive: Drive, function: Durable[Any, ...], body: bytes | None) -> Continued | None:
    """Call the code and write how it ends or rests; return with what it goes on from the top, if that is what it does.

    Raises:
        Parked: it rests.
    """
    ending: e.RunFinished | None = None
    continued: Continued | None = None
    blobs: Any = ()
    try:
        value = await function.function(Context(drive), **await _arguments(drive, function, body))
        if drive.over:
            return None
        _check_finished(drive)
        raw, blob, blobs, _ = store_value(function.result, value, f"the result of {function.name}", drive.secrets)
        ending = e.RunFinished(status=Status.COMPLETED, raw=raw, blob=blob)
    except Continued as unwound:
        _check_finished(drive)
        continued = unwound
    except BaseException as error:
        told = drive.cancelling.told and isinstance(error, asyncio.CancelledError) and not drive.stopping
        if not told and not is_failure(error):
            raise
        if not told:
            _check_finished(drive, error)
            ending = _failure(error, drive)
    finally:
        drive.calls.close(drive)
    if drive.halted is not None and drive.refused is None:
        # The code went on after it was told to stop: what it made of that is not the run's.
        raise drive.halted
    if drive.cancel_asked:
        # Whatever the code made of it, or cannot: whoever asked for the end was told that it counts.
        error_of = ending.error if ending is not None else None
        await finish(drive, drive.cancelling.ending(error_of))
    elif isinstance(drive.refused, Damaged):
        await rest(drive, Status.QUARANTINED, "damaged", detail=str(drive.refused))
    elif drive.refused is not None:
        await rest_diverged(drive, drive.refused)
    elif ending is not None:
        if ending.error is not None and not (drive.around.watched and drive.lease.row.parent is None):
            # Before it is written: whoever waits for the end may close the runtime on it. Not `exc_info`: the error
            # itself may hold a secret.
            drive.log.error("the run fails", error=ending.reason, exception=ending.error.traceback or "")
        await finish(drive, ending, blobs)
    else:
        return continued
    return None


async def _continue(drive: Drive, continued: Continued) -> None:
    """Begin another generation: what was recorded before it is not asked for again."""
    generation = drive.state.generation + 1
    entry = e.RunContinued(generation=generation, raw=continued.raw, blob=continued.blob)
    await drive.write(entry, blobs=continued.blobs, drop=("*",))
    drive.replay, drive.closed = drive.replay.anew(), {}
    drive.state = replace(drive.state, generation=generation)


def _failure(error: BaseException, drive: Drive) -> e.RunFinished:
    info = traced(error, drive.secrets)
    return e.RunFinished(status=Status.FAILED, reason=f"{info.type}: {info.message}"[:500], error=info)


async def _arguments(drive: Drive, function: Durable[Any, ...], body: bytes | None) -> dict[str, Any]:
    """Return what the code is called with: `body`, or what the last generation was begun with."""
    started, row = drive.origin.continued or drive.origin.started, drive.lease.row
    assert started is not None
    blob = started.blob
    try:
        if body is not None:
            return function.decode_input(body)
        stored = started.raw if blob is None else await drive.answer(drive.store.blob(row.tenant, blob.digest))
        return function.decode_input(stored)
    except (Damaged, NotFound) as error:
        raise drive.refuse(Damaged(run=row.run, seq=1, what=f"its input: {error}")) from error
    except InvalidValue as error:
        asked = f"{function.name}: {error}"
        raise drive.refuse(Diverged(seq=1, recorded="another input", asked=asked)) from error


def _check_finished(drive: Drive, error: BaseException | None = None) -> None:
    """Refuse the run if more was recorded of its code than it asked for; where it raised, it once went on."""
    if drive.halted is None and not drive.cancel_asked:
        try:
            drive.replay.finish(raised(error, drive.secrets) if error is not None else "")
        except Diverged as diverged:
            drive.refuse(diverged)


async def quarantine(drive: Drive, error: Exception) -> None:
    """Take a run that we fail to drive out of the way, under a name."""
    row = await drive.store.get(drive.lease.row.run)
    if row is not None:
        word = "damaged" if isinstance(error, StoreRefused) else "fault"
        why = f"{word}: driving it failed again and again: {type(error).__name__}: {message_of(error)}"
        change = RowChange(status=Status.QUARANTINED, reason=why[:500], refused=row.refused)
        await drive.store.commit(
            drive.lease, Commit(after=row.last_seq, previous=row.head, entries=(), change=change, progress=False)
        )


async def _set_aside(drive: Drive, error: HoldfastError) -> None:
    """Take a run that cannot be read out of the way; its journal is not touched."""
    lease = drive.lease
    row = lease.row
    unknown = isinstance(error, UnknownEntry)
    change = RowChange(
        status=Status.WAITING if unknown else Status.QUARANTINED,
        reason=f"{error.code}: {error}",
        due_at=row.due_at if unknown else None,
        refused=refusing(row.refused, drive.token) if unknown else row.refused,
    )
    await drive.store.commit(
        lease, Commit(after=row.last_seq, previous=row.head, entries=(), change=change, progress=False)
    )
