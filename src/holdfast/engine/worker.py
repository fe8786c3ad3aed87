"""A worker: claims runs, drives their code, and takes over from the dead."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from holdfast.core import limits
from holdfast.core.errors import Lost, StoreError, StoreRefused, StoreUnavailable
from holdfast.core.ids import RunId, WorkerId
from holdfast.engine.app import App
from holdfast.engine.contender import Contender, Told, nobody
from holdfast.engine.course import follow, quarantine
from holdfast.engine.drive import Drive
from holdfast.engine.function import Durable
from holdfast.engine.narrow import Narrow
from holdfast.engine.presence import Presence, introduce
from holdfast.engine.surroundings import Surroundings
from holdfast.engine.unserved import Unserved
from holdfast.engine.versions import Versions
from holdfast.store.protocol import Store
from holdfast.store.value import Lease, RunFilter, WorkerRow

_POLL_SECONDS: Final = 0.25
_REAP_SECONDS: Final = 0.5
_BACK_OFF_SECONDS: Final = 1.0
_DELIVER_SECONDS: Final = 0.05
"""How often it is looked for posts to the runs that are driven here, at most."""
_UNWIND_SECONDS: Final = 5.0
"""How long code that does not leave its run is waited for when its worker stops, or when the run is woken."""
_REFUSED_TWICE: Final = 2


class Worker:
    """Drives up to `concurrency` runs at once on the event loop it was started on."""

    def __init__(self, store: Store, app: App, around: Surroundings, *, concurrency: int, told: Told = nobody) -> None:
        self._store, self._app, self._around = store, app, around
        self._concurrency, self._told = concurrency, told
        self.versions = Versions(store, app)
        self._presence = Presence(store, around.log, self._declared_dead)
        self._contender = Contender(store, told)
        self._driving: dict[RunId, tuple[asyncio.Task[None], Drive | None]] = {}
        self._lost: set[asyncio.Task[None]] = set()
        """Code that leaves its run, whose lease is gone, until it has left."""
        self._only: Narrow | None = None
        self._stopping = self._draining = False
        self._dead: WorkerId | None = None
        """The id under which this worker was declared dead, until it has another."""
        self._loop_task: asyncio.Task[None] | None = None
        self._space = asyncio.Event()
        self._full = False
        self._starting = 0
        """How many starts are under way that may bring a lease, which is not driven before its answer comes."""
        self._promised = 0
        """How many places are kept for what starts and claims under way will bring."""
        self._claiming: asyncio.Future[None] | None = None
        self._settling = False
        self._reap_at = self._audit_at = self._deliver_at = 0.0
        self._faults: Counter[RunId] = Counter()
        self._unwritable: dict[RunId, StoreRefused] = {}
        self._introduced = 0
        """How many names it said that it serves."""
        self._unserved = Unserved(store, around)
        self._refused: StoreRefused | None = None
        self._reap_at = 0.0
        self.trouble: asyncio.Future[StoreUnavailable] = asyncio.get_running_loop().create_future()
        """Set when the store first failed a run of this worker's."""

    @property
    def id(self) -> WorkerId:
        """Under which name it works now; another one after it was declared dead."""
        return self._presence.id

    async def start(self, *, only: set[RunId] | None = None) -> None:
        """Become known to the store and begin to claim; `only` narrows it to those runs."""
        self._only = Narrow(self._store, only) if only is not None else None
        self.versions.bound = only is None
        await self.versions.enrol()
        await self._presence.join(self._about())
        try:
            await self.reap()
            await self._contender.sweep()
        except BaseException:
            self._presence.drop()
            raise
        self._loop_task = asyncio.create_task(self._work(), name=f"holdfast worker {self.id}")

    def _about(self) -> dict[str, str]:
        self._introduced = len(self._app.names)
        return introduce(
            self.versions.serves(),
            list(self._app.schedules.values()),
            concurrency=self._concurrency,
            version=self._app.version,
            narrowed=self._only is not None,
        )

    @property
    def has_room(self) -> bool:
        """True when another run could be driven now."""
        return self._may_take and not self._settling and self._free > 0

    @property
    def _free(self) -> int:
        return self._concurrency - len(self._driving) - self._promised

    async def finds_room(self) -> bool:
        """Say whether another run could be driven, once it is known what a claim that is under way brings.

        Not for long: where the store does not answer, a start must not wait for a claim first.
        """
        if self._claiming is not None:
            await asyncio.wait([self._claiming], timeout=_POLL_SECONDS)
        return self.has_room

    @contextlib.contextmanager
    def place(self) -> Iterator[Callable[[Lease], None]]:
        """Keep a place for a run that is being started; give what drives it, if its start brings a lease."""
        self._starting += 1
        self._promised += 1
        kept = True

        def take(lease: Lease) -> None:
            nonlocal kept
            kept = False
            self._promised -= 1
            self.take(lease)

        try:
            yield take
        finally:
            self._starting -= 1
            if kept:
                self._promised -= 1
                self._space.set()

    @property
    def _may_take(self) -> bool:
        return not self._stopping and not self._draining and self._dead is None

    def serves(self, name: str) -> bool:
        """Say whether this worker's app has that function."""
        return self._app.get(name) is not None

    def add_run(self, run: RunId) -> None:
        """Let a narrowed worker claim one more run, now or when it has lost the lease that it drives it under."""
        if self._only is not None:
            self._only.add(run)
            self._space.set()

    def _adopt(self, code: Durable[Any, ...], child: RunId) -> None:
        """Let a narrowed worker drive the children of its runs too, whose code nobody has named to it."""
        if self._only is not None:
            if self._app.get(code.name) is None:
                self._app.add(code)
            self.add_run(child)

    def take(self, lease: Lease) -> None:
        """Drive a run whose lease is at hand; one that came too late for this worker is left to be given up."""
        before, drive = self._driving.get(lease.row.run, (None, None))
        if not self._may_take or lease.worker != self.id:
            return
        if before is not None:
            if drive is None or not drive.resting or lease.fence <= drive.lease.fence:
                return
            # It was woken as soon as it was parked, and its code has not left yet.
            self._leave(before)
        task = asyncio.create_task(self._drive(lease, before), name=f"run {lease.row.run}")
        self._driving[lease.row.run] = (task, None)

    def _leave(self, task: asyncio.Task[None]) -> None:
        """Look after code that leaves a run, until it has."""
        self._lost.add(task)
        task.add_done_callback(self._lost.discard)

    async def _work(self) -> None:
        """Claim, drive and rest until stopped."""
        while not self._stopping:
            bell = self._store.watch(None)
            self._space.clear()
            try:
                if self._dead is not None:
                    await self._return()
                if asyncio.get_running_loop().time() >= self._reap_at:
                    await self.reap()
                claimed = await self._claim()
                self._refused = None
                await self._deliver()
                if not claimed:
                    await self._rest(bell)
            except Exception as error:
                self._refused = error if isinstance(error, StoreRefused) else None
                # A claim may have taken what its lost reply would have named: that is looked for before the next one.
                self._reap_at = 0.0
                # Whatever it was, the runs that are due must not wait for ever: said loudly, and tried again.
                what = "the store does not answer" if isinstance(error, StoreError) else "claiming runs failed"
                self._around.log.error(what, error=repr(error))
                await asyncio.sleep(_BACK_OFF_SECONDS)
            finally:
                bell.close()

    async def _claim(self) -> int:
        self._full = self._free <= 0
        only = None if self._only is None else [run for run in self._only.runs if run not in self._driving]
        if self._full or only == [] or not self._may_take:
            return 0
        if self._only is not None:
            await self._only.rouse()
        await self._enrol()
        return len(await self._claimed(only))

    async def _claimed(self, only: Sequence[RunId] | None) -> Sequence[Lease]:
        """Claim into the places that are free, which are kept meanwhile, and drive what was claimed."""
        room = self._free
        if room <= 0:
            return ()
        # After a death, runs that made no progress are driven one at a time: only the one that kills is charged again.
        suspects = not any(drive is None or drive.suspect for _, drive in self._driving.values())
        claiming = self._claiming = asyncio.get_running_loop().create_future()
        self._promised += room
        try:
            leases = await self._store.claim(self.id, self.versions.serves(), limit=room, runs=only, suspects=suspects)
            for lease in leases:
                self.take(lease)
            self._full = len(leases) == room
            return leases
        finally:
            self._promised -= room
            self._claiming = None
            claiming.set_result(None)

    async def _enrol(self) -> None:
        """Make known what the app has come to serve since this worker began."""
        if not self.versions.is_complete:
            await self.versions.enrol()
        if self._only is None and self._introduced != len(self._app.names):
            await self._presence.renew(self._about())

    async def _deliver(self) -> None:
        """Tell the runs that are driven here of the posts that have come for them."""
        now = asyncio.get_running_loop().time()
        if not self._driving or now < self._deliver_at:
            return
        self._deliver_at = now + _DELIVER_SECONDS
        for row in await self._store.list(RunFilter(owner=self.id, limit=self._concurrency)):
            drive = self._driving.get(row.run, (None, None))[1]
            if drive is not None and drive.lease.fence == row.fence:
                drive.waits.posted(row.inbox_seq, row.control_seq)

    async def _rest(self, bell: Any) -> None:
        """Wait for something to claim: a bell, a free place, or the next poll."""
        waits = {asyncio.ensure_future(bell.wait()), asyncio.ensure_future(self._space.wait())}
        until_reap = max(0.0, self._reap_at - asyncio.get_running_loop().time())
        try:
            await asyncio.wait(waits, timeout=min(_POLL_SECONDS, until_reap), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # Leases

    async def reap(self) -> None:
        """Take over from the dead, notice one's own death, and give up what is owned and not driven."""
        own = await self._contender.look(self.id, hearts=self._presence.hearty)
        now = asyncio.get_running_loop().time()
        self._reap_at = now + min(_REAP_SECONDS, limits.LEASE_SECONDS / 6)
        if own is None or not await self._presence.beat(own):
            self._declared_dead()
            return
        await self._settle(own)
        if now >= self._audit_at:
            self._audit_at = now + limits.LEASE_SECONDS
            await self._audit()
        await self._scrub()
        if self._only is None and self._may_take:
            names = self._contender.served | set(self._app.serves())
            await self._unserved.end(self.id, names, self._contender.workers)

    async def _scrub(self) -> None:
        """Let the store look for runs that it has lost; rows that cannot be read must not keep the others waiting."""
        try:
            for mended in await self._store.scrub():
                self._around.log.warning("the store mended itself", what=mended)
        except StoreRefused as error:
            self._around.log.error("some runs cannot be looked at", error=str(error))

    async def _settle(self, own: WorkerRow) -> None:
        """Give up leases whose answers were lost: more than is driven, once the starts under way have finished."""
        self._settling = own.leases > len(self._driving) + self._starting
        if self._settling and not self._starting:
            try:
                # Nothing is started for this worker meanwhile, so that nothing but the rest is given up.
                await self._store.release(self.id, keep=list(self._driving))
            finally:
                self._settling = False

    async def _audit(self) -> None:
        """Leave every run that is driven here and owned by somebody else, however long its step takes."""
        for run, (_, drive) in list(self._driving.items()):
            row = await self._store.get(run) if drive is not None else None
            if row is None or drive is None or drive.resting or self._driving.get(run, (None, None))[1] is not drive:
                continue
            if (row.owner, row.fence) != (drive.lease.worker, drive.lease.fence):
                self._lose(run, "its lease is gone")

    def _declared_dead(self) -> None:
        """Stop acting for every run at once: others may drive them already. The work begins anew under another id."""
        if self._dead is not None or self._stopping:
            return
        self._dead = self.id
        driven = list(self._driving)
        self._around.log.error("this worker was declared dead: its runs are others' now", worker=self.id)
        for run in driven:
            self._lose(run, "its worker was declared dead")
        self._space.set()

    def _lose(self, run: RunId, why: str) -> None:
        task, drive = self._driving.pop(run)
        self._around.log.warning("the run left this worker", run=run, why=why)
        if drive is not None:
            drive.lose(why)
        task.cancel()
        self._leave(task)
        self._space.set()

    async def _return(self) -> None:
        """Work on as somebody else."""
        await self._presence.return_as_another(self._about())
        was, self._dead = self._dead, None
        self._around.log.warning("this worker goes on under another id", worker=self.id, was=was)
        self._told("returned", {"worker": self.id, "was": was})

    # Driving

    async def _drive(self, lease: Lease, before: "asyncio.Task[None] | None") -> None:
        """Drive a run under a lease, after the code of the lease before has left."""
        run = lease.row.run
        function = self._app.get(lease.row.name)
        assert function is not None
        drive = Drive(self._store, lease, self._around, self._app.code(function), self._app.token(function))
        drive.versions, drive.place = self.versions, self.versions.of(lease.row.name).place or 0
        drive.on_progress, drive.handing = self._space.set, self._draining
        drive.on_spawn = self._adopt
        drive.crowded, drive.draining = lambda: self._full, lambda: self._draining
        task = self._driving[run][0]
        self._driving[run] = (task, drive)
        try:
            if before is not None and not (await asyncio.wait([before], timeout=_UNWIND_SECONDS))[0]:
                return  # owned and not driven: given up at the next look, for whoever is not held up
            await follow(drive, function)
        except Lost as lost:
            if not drive.stopping:
                self._around.log.warning("the run left this worker", run=run, why=str(lost))
            if isinstance(lost.__cause__, StoreUnavailable):
                self._trouble(lost.__cause__)
            elif isinstance(lost.__cause__, StoreRefused):
                await self._fault(drive, lost.__cause__)
        except StoreUnavailable as error:
            self._around.log.error("the run waits for the store", run=run, error=str(error))
            self._trouble(error)
        except StoreRefused as error:
            # Damage, which is nobody's fault: no traceback, which takes longer to draw than the run to be set aside.
            self._around.log.error("the run cannot be read", run=run, error=str(error))
            await self._fault(drive, error)
        except asyncio.CancelledError:
            if not drive.stopping:
                raise
        except Exception as error:
            # A fault of ours, not of the run's code: said loudly, and the run is tried again, but not for ever.
            self._around.log.error("driving the run failed", run=run, error=repr(error), exc_info=error)
            await self._fault(drive, error)
        finally:
            drive.waits.close()
            if self._driving.get(run, (None,))[0] is task:
                del self._driving[run]
            if self._full:
                self._space.set()
        if self._draining:
            # What was handed over is owned and not driven: it is given back at the next look, which is now.
            self._reap_at = 0.0
            self._space.set()

    async def _fault(self, drive: Drive, error: Exception) -> None:
        """Count what is not the fault of the run's code; too often, and the run is set aside under a name."""
        run = drive.lease.row.run
        self._faults[run] += 1
        # What is damaged stays so; anything else may pass.
        if self._faults[run] < (_REFUSED_TWICE if isinstance(error, StoreRefused) else limits.STALLS):
            if isinstance(error, StoreRefused):
                # Its lease is given up at once: on a damaged page many runs come here, one after the other.
                self._reap_at = 0.0
                self._space.set()
            return
        try:
            await quarantine(drive, error)
        except StoreError as again:
            self._around.log.error("the run could not be set aside", run=run, error=repr(again))
            if isinstance(error, StoreRefused):
                self._unwritable[run] = error

    def refusal(self, run: RunId) -> StoreRefused | None:
        """Say why this worker cannot drive a run, if it is that the store is damaged; anything else may pass."""
        return self._unwritable.get(run) or (self._refused if run not in self._driving else None)

    def _trouble(self, error: StoreUnavailable) -> None:
        if not self.trouble.done():
            self.trouble.set_result(error)

    # Leaving

    async def drain(self, grace_seconds: float) -> None:
        """Claim nothing more, hand each run over at its next entry or when the grace is over, and leave."""
        self._draining = True
        for _, drive in self._driving.values():
            if drive is not None:
                drive.handing = True
                drive.waits.wake()
        tasks = [task for task, _ in self._driving.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_seconds)
        await self.stop()

    async def stop(self) -> None:
        """Stop driving, give every lease back, and leave."""
        if self._stopping:
            return
        self._stopping = True
        self._space.set()
        tasks = [*self._lost, *(task for task, _ in self._driving.values())]
        for task, drive in list(self._driving.values()):
            if drive is not None:
                drive.stop()
            task.cancel()
        if self._loop_task is not None:
            self._loop_task.cancel()
            tasks.append(self._loop_task)
        if tasks:
            left, deaf = await asyncio.wait(tasks, timeout=_UNWIND_SECONDS)
            for task in left:
                _ = task.cancelled() or task.exception()  # looked at, so that nobody is told of it later
            for task in deaf:
                self._around.log.warning(
                    "code does not heed its cancellation, and is left behind", task=task.get_name()
                )
        try:
            await self._store.release(self.id)
            await self._presence.leave()
        except StoreError as error:
            self._around.log.warning("the store did not take the goodbye", error=str(error))
            self._presence.abandon()
            return
        self._presence.drop()
