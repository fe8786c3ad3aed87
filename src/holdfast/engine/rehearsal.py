"""Replay of a recorded run against today's code, up to the first thing that is not recorded; nothing is performed."""

import asyncio
import selectors
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from holdfast.core import entry as e
from holdfast.core.checksum import ZERO, Share, StoredEntry
from holdfast.core.cursor import Cursor
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, Diverged, NotFound, Unwind
from holdfast.core.ids import Fence, RunId, WorkerId
from holdfast.core.status import Status
from holdfast.engine.catchup import CatchUp
from holdfast.engine.course import follow
from holdfast.engine.drive import Drive
from holdfast.engine.function import Durable
from holdfast.engine.log import SILENT
from holdfast.engine.payload import Secrets
from holdfast.engine.surroundings import Surroundings
from holdfast.engine.waits import Waits
from holdfast.journal.replay import Answer, Replay
from holdfast.store.protocol import Pending, Store
from holdfast.store.value import Commit, Committed, Lease, Outcome, Page, Post, RunRow

_NOBODY: Final = WorkerId("rehearsal")
_OUTSIDE_SECONDS: Final = 10.0
"""How long code that waits for something outside the run is waited for."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The code came to the end of what is recorded: it asked for `step` next, which has no outcome yet."""

    step: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The code came to its own end, having asked for all that is recorded; `ending` is what it would write."""

    ending: e.RunFinished


Rehearsed = Stopped | Finished | Diverged
"""How far the code came. A divergence is a value here: whoever rehearses many runs wants to hear of all."""


def rehearse(
    function: Durable[Any, ...],
    run: RunId,
    entries: Sequence[StoredEntry],
    *,
    blobs: Mapping[str, bytes] = {},
    secrets: Secrets | None = None,
    shares: Sequence[Share] = (),
) -> Rehearsed:
    """Run `function` over what a run recorded, without performing or writing anything; `shares` as in its pages.

    A run that has ended must end alike. Code that waits is not waited for: its timers are reached at once. May be
    called with or without an event loop running; it uses one of its own.

    Raises:
        Damaged: the entries do not add up, or hold what this version cannot read.
    """
    with ThreadPoolExecutor(1) as thread:
        played = thread.submit(rehearse_here, function, run, entries, blobs=blobs, secrets=secrets, shares=shares)
        return played.result()


def rehearse_here(
    function: Durable[Any, ...],
    run: RunId,
    entries: Sequence[StoredEntry],
    *,
    blobs: Mapping[str, bytes] = {},
    secrets: Secrets | None = None,
    shares: Sequence[Share] = (),
) -> Rehearsed:
    """Do as `rehearse`, on this thread, which has no event loop."""
    script = _Script(run, entries, blobs, shares)
    with asyncio.Runner(loop_factory=_HastyLoop) as runner:
        return runner.run(_rehearse(function, script, secrets))


class _Reached(Unwind):
    """The code asked for something that has no recorded outcome."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class _Standstill(CatchUp):
    """Ends the code where it asks for what is not recorded, once every branch has come to such a place."""

    @property
    def pending(self) -> bool:
        """Always: nothing is beyond what is recorded."""
        return True

    @pending.setter
    def pending(self, value: bool) -> None:
        return

    async def _may_act(self, step: str) -> NoReturn:
        raise self._drive.halt(_Reached(step))


class _Lenient(Replay):
    """Passes over what a step was given once the code has made a callback token: here it makes another one."""

    def __init__(self, script: "_Script") -> None:
        super().__init__()
        self._script = script

    def ask(self, branch: str, key: str, digest: str | None, what: str | None = None) -> Answer:
        return super().ask(branch, key, None if self._script.made_tokens else digest, what)

    def anew(self) -> "Replay":
        return _Lenient(self._script)


class _NoWaits(Waits):
    """Waits that nothing ends: whoever waits has come to the end of what is recorded."""

    async def until(self, kind: str, step: str, **rest: Any) -> NoReturn:
        await self._drive.catching.arrive(step or kind)
        raise AssertionError("nothing is beyond what is recorded")


class _Script:
    """What a drive sees of a store: one run's entries and blobs. What it would write is kept and not written."""

    def __init__(
        self, run: RunId, entries: Sequence[StoredEntry], blobs: Mapping[str, bytes], shares: Sequence[Share]
    ) -> None:
        self.entries, self._blobs, self._shares = entries, blobs, shares
        first = read_entry(run, entries[0]) if entries else None
        if not isinstance(first, e.RunStarted):
            raise Damaged(run=run, seq=1, what="it does not begin with its start")
        last = entries[-1]
        self.row = RunRow(
            run=run, number=0, tenant=first.tenant, name=first.name, digest=first.digest, created_at=entries[0].at,
            updated_at=last.at, key=first.key, code=first.code, last_seq=last.seq, head=last.checksum, owner=_NOBODY,
            fence=Fence(1),
        )  # fmt: skip
        ending = read_entry(run, last)
        self.recorded = ending if isinstance(ending, e.RunFinished) else None
        self.written: list[StoredEntry] = []
        self.made_tokens = False
        """True once the code asked for what callback tokens are made with, which is not here."""
        self.aside = ""
        """Why the run could not be followed, when that is what a worker would write."""

    def now(self) -> int:
        return self.entries[-1].at

    async def read(self, run: RunId, after: Cursor, *, chunks: bool = True, limit: int = 0) -> Page:
        previous = self.entries[after.seq - 1].checksum if after.seq else ZERO
        return Page(self.row, self.entries[after.seq :], (), previous, False, self._shares)

    async def blob(self, tenant: str, digest: str) -> bytes:
        if digest not in self._blobs:
            raise NotFound(f"blob {digest}")
        return self._blobs[digest]

    async def inbox(self, run: RunId, *, after: int = 0) -> Sequence[Post]:
        return ()

    async def secret(self) -> bytes:
        self.made_tokens = True
        return bytes(32)

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        self.written += change.entries
        if not change.entries and change.change is not None:
            self.aside = change.change.reason
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        done.set_result(Committed(change.after + len(change.entries)))
        return done


async def _rehearse(function: Durable[Any, ...], script: _Script, secrets: Secrets | None) -> Rehearsed:
    lease = Lease(script.row, _NOBODY, Fence(1), "started")
    drive = Drive(cast(Store, script), lease, Surroundings(secrets=secrets, log=SILENT), script.row.code, "rehearsal")
    drive.replay, drive.waits, drive.catching = _Lenient(script), _NoWaits(drive), _Standstill(drive)
    drive.rehearsing = True
    try:
        await asyncio.create_task(follow(drive, function))
    except _Reached as reached:
        if script.recorded is not None and script.recorded.status is not Status.CANCELLED:
            return Diverged(seq=script.row.last_seq, recorded="the end of the run", asked=f"{reached.step!r}")
        return Stopped(reached.step)
    written = [read_entry(script.row.run, stored) for stored in script.written]
    ending = written[-1] if written else None
    if drive.cancel_asked and script.recorded is None and isinstance(ending, e.RunFinished):
        return Finished(ending)  # whatever its code makes of that
    if isinstance(drive.refused, Diverged):
        return drive.refused
    if drive.refused is not None:
        raise drive.refused
    if not isinstance(ending, e.RunFinished):
        raise Damaged(run=script.row.run, seq=None, what=script.aside or "what is recorded cannot be followed")
    return _compared(drive, script, ending)


def _compared(drive: Drive, script: _Script, ending: e.RunFinished) -> Rehearsed:
    """Return the ending, unless the run recorded more than the code asked for, or another ending."""
    try:
        drive.replay.finish()
    except Diverged as left:
        return Diverged(seq=left.seq, recorded=left.recorded, asked=f"the end of the run, {_told(ending)}")
    recorded = script.recorded
    if recorded is not None and _told(recorded) != _told(ending):
        return Diverged(seq=recorded.seq, recorded=f"the end of the run, {_told(recorded)}", asked=_told(ending))
    return Finished(ending)


def _told(ending: e.RunFinished) -> str:
    if ending.status is not Status.COMPLETED:
        return f"{ending.status}: {ending.reason}"
    if ending.said is not None:
        return f"completed with what entry {ending.said} says"
    value = bytes(ending.raw).decode() if ending.blob is None else f"blob {ending.blob.digest}"
    return f"completed with {value}"


class _HastySelector(selectors.DefaultSelector):
    """Does not wait for timers: it says how long it would have waited."""

    skipped_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else _OUTSIDE_SECONDS)
        if timeout is None and not ready:
            raise TimeoutError("the code waits for something outside the run")
        if timeout is not None and timeout > 0 and not ready:
            self.skipped_seconds += timeout
        return ready


class _HastyLoop(asyncio.SelectorEventLoop):
    """An event loop on which time passes only when nothing else is left to do."""

    def __init__(self) -> None:
        self._hasty = _HastySelector()
        super().__init__(self._hasty)

    def time(self) -> float:
        return super().time() + self._hasty.skipped_seconds
