"""A worker: claims runs, drives their code, and takes over from the dead."""

import asyncio
import os
from collections import Counter
from typing import Any, Final

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.errors import (
    Damaged,
    Diverged,
    HoldfastError,
    InvalidValue,
    Lost,
    NotFound,
    Parked,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UnknownEntry,
)
from holdfast.core.ids import RunId, WorkerId, new_worker_id
from holdfast.core.status import Status
from holdfast.engine.app import App
from holdfast.engine.context import Context
from holdfast.engine.drive import Drive, Surroundings, refusals
from holdfast.engine.function import Durable
from holdfast.engine.lock import WorkerLock, lock_path, lock_paths, proof_of_death
from holdfast.engine.payload import error_info, is_failure, message_of, store_value
from holdfast.store.protocol import Commit, Lease, RowChange, Store, WorkerRow

_POLL_SECONDS: Final = 0.25
_REAP_SECONDS: Final = 1.0
_BACK_OFF_SECONDS: Final = 1.0
_REFUSED_TWICE: Final = 2


class Worker:
    """Drives up to `concurrency` runs at once on the event loop it was started on."""

    def __init__(self, store: Store, app: App, around: Surroundings, *, concurrency: int) -> None:
        self.id: WorkerId = new_worker_id()
        self._store, self._app, self._around = store, app, around
        self._concurrency, self._lock_folder = concurrency, store.lock_folder
        self._lock: WorkerLock | None = None
        self._driving: dict[RunId, tuple[asyncio.Task[None], Drive | None]] = {}
        self._only: set[RunId] | None = None
        self._stopping = False
        self._loop_task: asyncio.Task[None] | None = None
        self._space = asyncio.Event()
        self._full = False
        self.starting = 0
        """How many starts are under way that may bring a lease, which is not driven before its answer comes."""
        self._settling = False
        self._pulses: dict[WorkerId, tuple[int, float]] = {}
        self._faults: Counter[RunId] = Counter()
        self._unwritable: dict[RunId, StoreRefused] = {}
        self._refused: StoreRefused | None = None
        self.trouble: asyncio.Future[StoreUnavailable] = asyncio.get_running_loop().create_future()
        """Set when the store first failed a run of this worker's."""

    async def start(self, *, only: set[RunId] | None = None) -> None:
        """Become known to the store and begin to claim; `only` narrows it to those runs."""
        self._only = only
        if self._lock_folder is not None:
            self._lock = WorkerLock(self._lock_folder, self.id)
        try:
            await self._store.register(self.id, lock=os.path.basename(self._lock.path) if self._lock else None)
            await self.reap()
            await self._sweep()
        except BaseException:
            self._unlock()
            raise
        self._loop_task = asyncio.create_task(self._work(), name=f"holdfast worker {self.id}")

    @property
    def has_room(self) -> bool:
        """True when another run could be driven now."""
        return not self._stopping and not self._settling and len(self._driving) < self._concurrency

    def serves(self, name: str) -> bool:
        """Say whether this worker's app has that function."""
        return self._app.get(name) is not None

    def add_run(self, run: RunId) -> None:
        """Let a narrowed worker claim one more run."""
        if self._only is not None and run not in self._driving:
            self._only.add(run)
            self._space.set()

    def take(self, lease: Lease) -> None:
        """Drive a run whose lease is at hand."""
        if lease.row.run not in self._driving:
            task = asyncio.create_task(self._drive(lease), name=f"run {lease.row.run}")
            self._driving[lease.row.run] = (task, None)

    async def _work(self) -> None:
        """Claim, drive and rest until stopped."""
        reap_at = asyncio.get_running_loop().time() + _REAP_SECONDS
        while not self._stopping:
            bell = self._store.watch(None)
            self._space.clear()
            try:
                if asyncio.get_running_loop().time() >= reap_at:
                    await self.reap()
                    reap_at = asyncio.get_running_loop().time() + _REAP_SECONDS
                claimed = await self._claim()
                self._refused = None
                if not claimed:
                    await self._rest(bell)
            except Exception as error:
                self._refused = error if isinstance(error, StoreRefused) else None
                # Whatever it was, the runs that are due must not wait for ever: said loudly, and tried again.
                what = "the store does not answer" if isinstance(error, StoreError) else "claiming runs failed"
                self._around.log.error(what, error=repr(error))
                await asyncio.sleep(_BACK_OFF_SECONDS)
            finally:
                bell.close()

    async def _claim(self) -> int:
        room = self._concurrency - len(self._driving)
        self._full = room <= 0
        only = None if self._only is None else [run for run in self._only if run not in self._driving]
        if room <= 0 or only == []:
            return 0
        # After a death, runs that made no progress are driven one at a time: only the one that kills is charged again.
        suspected = any(drive is None or drive.suspect for _, drive in self._driving.values())
        leases = await self._store.claim(self.id, self._app.serves(), limit=room, runs=only, suspects=not suspected)
        for lease in leases:
            self.take(lease)
        self._full = len(leases) == room
        return len(leases)

    async def _rest(self, bell: Any) -> None:
        """Wait for something to claim: a bell, a free place, or the next poll."""
        waits = {asyncio.ensure_future(bell.wait()), asyncio.ensure_future(self._space.wait())}
        try:
            await asyncio.wait(waits, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def reap(self) -> None:
        """Take over from workers whose lock can be taken, and give up what this one owns and does not drive."""
        for row in await self._store.workers():
            if row.worker == self.id:
                # More than is driven and being started: let the starts finish, take no more, then give the rest up.
                self._settling = row.leases > len(self._driving) + self.starting
                if self._settling and not self.starting:
                    self._settling = False
                    await self._store.release(self.id, keep=list(self._driving))
                if row.leases:
                    await self._store.pulse(self.id)
            elif self._lock_folder is not None:
                await self._reap(row, self._lock_folder)
        for mended in await self._store.scrub():
            self._around.log.warning("the store mended itself", what=mended)

    async def _sweep(self) -> None:
        """Remove the locks of workers that died before a row named them, or after theirs was gone."""
        folder = self._lock_folder
        if folder is None:
            return
        for path in set(lock_paths(folder)) - await self._named_locks(folder):
            claim = proof_of_death(path)
            if claim is None:
                continue
            try:
                # Its holder is dead, so if no row names it now, none ever will.
                named = path in await self._named_locks(folder)
            except BaseException:
                claim.release()
                raise
            if named:
                claim.release()
            else:
                claim.bury()

    async def _named_locks(self, folder: str) -> set[str]:
        return {lock_path(folder, row.worker) for row in await self._store.workers()}

    async def _reap(self, row: WorkerRow, folder: str) -> None:
        path = lock_path(folder, row.worker)
        claim = proof_of_death(path)
        if claim is not None:
            await self._store.void(row.worker, why="its lock was free")
            claim.bury()
        elif os.path.exists(path):
            self._pulses.pop(row.worker, None)
        else:
            # A missing file proves nothing; but one who lives, and holds leases, beats.
            now = asyncio.get_running_loop().time()
            pulse, since = self._pulses.setdefault(row.worker, (row.pulse, now))
            if pulse != row.pulse:
                self._pulses[row.worker] = (row.pulse, now)
            elif now - since >= limits.LEASE_SECONDS:
                del self._pulses[row.worker]
                await self._store.void(row.worker, why="no sign of life for a whole lease")

    async def _drive(self, lease: Lease) -> None:
        run = lease.row.run
        function = self._app.get(lease.row.name)
        assert function is not None
        drive = Drive(self._store, lease, self._around, self._app.code(function), self._app.token(function))
        drive.on_progress = self._space.set
        self._driving[run] = (self._driving[run][0], drive)
        try:
            await _run(drive, function)
        except Lost as lost:
            self._around.log.warning("the run left this worker", run=run, why=str(lost))
            if isinstance(lost.__cause__, StoreUnavailable):
                self._trouble(lost.__cause__)
            elif isinstance(lost.__cause__, StoreRefused):
                await self._fault(drive, lost.__cause__)
        except StoreUnavailable as error:
            self._around.log.error("the run waits for the store", run=run, error=str(error))
            self._trouble(error)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        except Exception as error:
            # A fault of ours, not of the run's code: said loudly, and the run is tried again, but not for ever.
            self._around.log.error("driving the run failed", run=run, error=repr(error), exc_info=error)
            await self._fault(drive, error)
        finally:
            del self._driving[run]
            if self._full:
                self._space.set()

    async def _fault(self, drive: Drive, error: Exception) -> None:
        """Count what is not the fault of the run's code; too often, and the run is set aside under a name."""
        run = drive.lease.row.run
        self._faults[run] += 1
        # What is damaged stays so; anything else may pass.
        if self._faults[run] < (_REFUSED_TWICE if isinstance(error, StoreRefused) else limits.STALLS):
            return
        try:
            await _quarantine(drive, error)
        except StoreError as again:
            self._around.log.error("the run could not be set aside", run=run, error=repr(again))
            if isinstance(error, StoreRefused):
                self._unwritable[run] = error

    def refusal(self, run: RunId) -> StoreRefused | None:
        """Say why this worker cannot drive a run, if it is that the store is damaged; anything else may pass."""
        return self._unwritable.get(run) or self._refused

    def _trouble(self, error: StoreUnavailable) -> None:
        if not self.trouble.done():
            self.trouble.set_result(error)

    async def stop(self) -> None:
        """Stop driving, give every lease back, and leave."""
        self._stopping = True
        self._space.set()
        tasks = [task for task, _ in self._driving.values()]
        for task, drive in list(self._driving.values()):
            if drive is not None:
                drive.stop()
            task.cancel()
        if self._loop_task is not None:
            self._loop_task.cancel()
            tasks.append(self._loop_task)
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._store.release(self.id)
            await self._store.void(self.id, why="stopped")
        except StoreError as error:
            self._around.log.warning("the store did not take the goodbye", error=str(error))
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


async def _run(drive: Drive, function: Durable[Any, *tuple[Any, ...]]) -> None:
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


async def _quarantine(drive: Drive, error: Exception) -> None:
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
