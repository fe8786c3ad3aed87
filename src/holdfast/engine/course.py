"""The course of a run under one lease: load it, run its code, and write how it ends or rests."""

from typing import Any

from holdfast.core import entry as e
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
from holdfast.core.status import Status
from holdfast.engine.context import Context
from holdfast.engine.drive import Drive, refusals
from holdfast.engine.function import Durable
from holdfast.engine.payload import error_info, is_failure, message_of, store_value
from holdfast.store.value import Commit, RowChange


async def follow(drive: Drive, function: Durable[Any, *tuple[Any, ...]]) -> None:
    """Load a run, drive its code, and write how it ends or rests."""
    try:
        await drive.load()
    except (Damaged, UnknownEntry, InvalidValue) as error:
        await _set_aside(drive, error)
        return
    if drive.lease.why != "started":
        drive.resumed()
    ending: e.RunFinished | None = None
    blobs: Any = ()
    try:
        value = await function.function(Context(drive), **await _arguments(drive, function))
        _check_finished(drive)
        raw, blob, blobs, _ = store_value(function.result, value, f"the result of {function.name}", drive.secrets)
        ending = e.RunFinished(status=Status.COMPLETED, raw=raw, blob=blob)
    except Parked:
        return
    except BaseException as error:
        if not is_failure(error):
            raise
        ending = _failure(error, drive)
    if drive.halted is not None and drive.refused is None:
        # The code went on after it was told to stop: what it made of that is not the run's.
        if isinstance(drive.halted, Parked):
            return
        raise drive.halted
    if isinstance(drive.refused, Damaged):
        await drive.rest(Status.QUARANTINED, "damaged", detail=str(drive.refused))
    elif drive.refused is not None:
        now = drive.store.now()
        await drive.rest(Status.WAITING, "diverged", due_at=now, detail=str(drive.refused), code=drive.code)
    elif ending is not None:
        await drive.finish(ending, blobs)


def _failure(error: BaseException, drive: Drive) -> e.RunFinished:
    info = error_info(error, drive.secrets)
    return e.RunFinished(status=Status.FAILED, reason=f"{info.type}: {info.message}"[:500], error=info)


async def _arguments(drive: Drive, function: Durable[Any, *tuple[Any, ...]]) -> dict[str, Any]:
    started, row = drive.started, drive.lease.row
    assert started is not None
    blob = started.blob
    try:
        body = started.raw if blob is None else await drive.answer(drive.store.blob(row.tenant, blob.digest))
        return function.decode_input(body)
    except (Damaged, NotFound) as error:
        raise drive.refuse(Damaged(run=row.run, seq=1, what=f"its input: {error}")) from error
    except InvalidValue as error:
        asked = f"{function.name}: {error}"
        raise drive.refuse(Diverged(seq=1, recorded="another input", asked=asked)) from error


def _check_finished(drive: Drive) -> None:
    try:
        drive.replay.finish()
    except Diverged as diverged:
        raise drive.refuse(diverged) from None


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
        refused=refusals(row.refused, drive.token) if unknown else row.refused,
    )
    await drive.store.commit(
        lease, Commit(after=row.last_seq, previous=row.head, entries=(), change=change, progress=False)
    )
