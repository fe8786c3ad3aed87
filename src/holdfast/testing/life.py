"""One life of a process that drives a run: what it finds, what it performs, and how the run stands when it leaves."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from holdfast.client.local import LocalClient
from holdfast.client.protocol import Ending
from holdfast.core import entry as e
from holdfast.core.ids import RunId
from holdfast.core.status import Effect, Status
from holdfast.engine import witness
from holdfast.engine.app import App
from holdfast.engine.log import SILENT
from holdfast.store.protocol import Store
from holdfast.store.value import Lease, RunFilter
from holdfast.stream.feed import feed
from holdfast.testing.clock import MovingClock
from holdfast.testing.opening import ClockedRuntime
from holdfast.testing.outside import Outside

_ALL: Final = 100_000
Step = tuple[str, str]
"""A run's id and a step key."""


@dataclass(slots=True)
class Lived:
    """What a life found recorded when it began, and what it performed, in order."""

    recorded: list[Step] = field(default_factory=list)
    performed: list[Step] = field(default_factory=list)


class Stuck(AssertionError):
    """A life did not come to an end in time."""


@contextmanager
def witnessed(lived: Lived) -> Iterator[None]:
    """Note in `lived` what is performed meanwhile."""

    def heard(lease: Lease, step: str, attempt: int) -> None:
        before(lease, step, attempt)
        lived.performed.append((lease.row.run, step))

    before, witness.performed = witness.performed, heard
    try:
        yield
    finally:
        witness.performed = before


async def live(store: Store, app: App, run: RunId, clock: MovingClock, others: Outside, *, seconds: float) -> None:
    """Drive what is in the store until `run` has ended or nothing will ever move it, neither time nor the others.

    Raises:
        Stuck: it takes longer than `seconds`.
        Exception: what the others raised.
    """
    # Silent: what one life would log, hundreds would log again, and the dead that their loop stands still.
    runtime = ClockedRuntime(store, app, clock, jumps=True, log=SILENT)
    try:
        timed = runtime._timed
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def act() -> bool:
            try:
                return await others.act(cast(Store, timed))
            except Exception as error:
                failed.set_exception(error)
                timed.before_time = None
                return True

        if not others.is_nobody:
            timed.before_time = act
        await runtime._start_working(None)
        waits: set[asyncio.Future[Any]] = {
            failed,
            asyncio.ensure_future(runtime.client.wait(run, or_person=others.answers is None)),
            asyncio.ensure_future(timed.idle.wait()),
        }
        ended, left = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in left:
            each.cancel()
        if not ended:
            raise Stuck(f"the run has not ended after {seconds:g} s")
        for each in ended:
            each.result()
    finally:
        await runtime.close()


async def recorded_steps(store: Store) -> AsyncIterator[Step]:
    """Yield every step of every run whose outcome is recorded: it must not be performed again."""
    for row in await store.list(RunFilter(limit=_ALL)):
        async for event in feed(store, row.run, follow=False):
            match event:
                case e.StepCompleted(step=step) | e.StepFailed(step=step, retry_at=None):
                    yield row.run, step
                case e.MessageAdded(step=str() as step) | e.HistoryCompacted(step=str() as step):
                    yield row.run, step
                case e.StepResolved(step=step, outcome="done" | "unknown"):
                    yield row.run, step
                case _:
                    pass


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run stood at the end: unbroken, or after a crash.

    `result` is plain data, as the journal holds it. `performed` says how often each step's function returned, by step
    key, over all lives; `entries` are the run's events. `crash` is where it was killed, None for an unbroken run.
    `received` names the signals that it and its children received, `unended` the functions of its children, and of
    theirs, that have not ended.
    """

    status: Status
    reason: str
    result: Any
    error: Mapping[str, Any] | None
    entries: Sequence[e.Entry]
    performed: Mapping[str, int]
    crash: str | None = None
    received: Sequence[str] = ()
    unended: Sequence[str] = ()

    @property
    def doubted(self) -> Sequence[str]:
        """The steps of which nobody knows whether they happened, because of the crash."""
        open_: dict[str, None] = {}
        for entry in self.entries:
            match entry:
                case e.StepDoubted(why="crash"):
                    open_[entry.step] = None
                case e.StepResolved(outcome="done" | "not_done"):
                    open_.pop(entry.step, None)
                case _:
                    pass
        return list(open_)


async def look(store: Store, run: RunId, lives: Sequence[Lived], crash: str | None) -> Ended:
    """Return how a run stands after these lives."""
    entries = [event async for event in feed(store, run, follow=False) if isinstance(event, e.Entry)]
    counts: dict[str, int] = {}
    for lived in lives:
        for owner, step in lived.performed:
            if owner == run:
                counts[step] = counts.get(step, 0) + 1
    ending = await _ending(store, run)
    result = msgspec.json.decode(ending.value) if ending.status is Status.COMPLETED else None
    rows = await store.list(RunFilter(limit=_ALL))
    received = sorted({name async for name in _received(store)})
    unended = sorted({row.name for row in rows if row.run != run and not row.status.terminal})
    return Ended(ending.status, ending.reason, result, ending.error, entries, counts, crash, received, unended)


async def _received(store: Store) -> AsyncIterator[str]:
    """Yield the name of every signal that a run of the store received."""
    for row in await store.list(RunFilter(limit=_ALL)):
        async for event in feed(store, row.run, follow=False):
            if isinstance(event, e.SignalReceived):
                yield event.name


async def _ending(store: Store, run: RunId) -> Ending:
    client, row = LocalClient(store), await store.get(run)
    assert row is not None
    if row.status.terminal:
        return await client.wait(run)
    return Ending(status=row.status, reason=row.reason)


def once_steps(entries: Sequence[e.Entry]) -> set[str]:
    """Return the steps that may happen at most once."""
    return {entry.step for entry in entries if isinstance(entry, e.StepStarted) and entry.effect is Effect.ONCE}
