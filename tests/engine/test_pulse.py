"""A worker's own thread beats whatever the event loop does, and tells who keeps the loop from turning."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId
from holdfast.engine.pulse import Pulse
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Pending
from holdfast.store.value import Commit, Lease, Outcome
from tests.engine.stage import Hurdle, kinds_of, soon


class Listener:
    """A log that is read by the test."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self._heard = threading.Condition()

    def warning(self, event: str, /, **fields: Any) -> None:
        """Hear a line."""
        with self._heard:
            self.lines.append((event, fields))
            self._heard.notify_all()

    error = warning

    def wait_for(self, word: str) -> dict[str, Any]:
        """Return what was said about the first line that begins so, once it was; blocks whoever calls."""
        with self._heard:
            assert self._heard.wait_for(lambda: any(line.startswith(word) for line, _ in self.lines), timeout=20)
            return next(fields for line, fields in self.lines if line.startswith(word))


class Beats:
    """A heart that counts, and does what it is told."""

    def __init__(self) -> None:
        self.count, self.alive = 0, True
        self.down: Exception | None = None
        self.closed_by: int | None = None
        self._beaten = threading.Condition()

    def beat(self) -> bool:
        """Beat."""
        with self._beaten:
            self.count += 1
            self._beaten.notify_all()
        if self.down is not None:
            raise self.down
        return self.alive

    def close(self) -> None:
        """Remember who let go."""
        self.closed_by = threading.get_ident()

    def wait_for(self, count: int) -> None:
        """Block until so many beats were made."""
        with self._beaten:
            assert self._beaten.wait_for(lambda: self.count >= count, timeout=20)


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease short enough to wait for."""
    monkeypatch.setattr(limits, "LEASE_SECONDS", 0.6)


@pytest.fixture
def log() -> Listener:
    """What the thread says."""
    return Listener()


def block_on(wait: Any) -> None:
    """Keep the event loop from turning, as a user's code does by accident."""
    wait()


async def test_the_pulse_beats_while_the_loop_is_blocked(log: Listener) -> None:
    """A run that computes for minutes without awaiting loses no lease by it."""
    heart, died = Beats(), list[int]()
    pulse = Pulse(heart, log, lambda: died.append(1))
    pulse.start()
    block_on(lambda: heart.wait_for(4))
    pulse.stop()
    assert heart.closed_by not in (None, threading.get_ident())
    assert died == []


@pytest.mark.parametrize("error", [StoreUnavailable("gone for a walk"), RuntimeError("a fault of the driver's")])
async def test_a_store_that_does_not_answer_kills_nobody(log: Listener, error: Exception) -> None:
    """A beat that failed says nothing about the worker: it is said once, and tried again."""
    heart, died = Beats(), list[int]()
    heart.down = error
    pulse = Pulse(heart, log, lambda: died.append(1))
    pulse.start()
    await asyncio.to_thread(heart.wait_for, 3)
    heart.down = None
    await asyncio.to_thread(heart.wait_for, 5)
    pulse.stop()
    assert [line for line, _ in log.lines] == ["the store does not take the worker's pulse"]
    assert died == []


async def test_a_worker_that_was_declared_dead_hears_it_once_on_its_loop(log: Listener) -> None:
    """The thread only listens: what must be done is done where the runs are."""
    heart, died = Beats(), asyncio.Event()
    threads: list[int] = []
    heart.alive = False

    def on_death() -> None:
        threads.append(threading.get_ident())
        died.set()

    pulse = Pulse(heart, log, on_death)
    pulse.start()
    await soon(died.wait())
    pulse.stop()
    assert (threads, heart.count) == ([threading.get_ident()], 1)


class Slow(Beats):
    """A heart whose answer is long in coming."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = threading.Event()

    def beat(self) -> bool:
        """Beat, and wait to be told."""
        super().beat()
        self.answer.wait(30)
        return False


async def test_an_answer_that_comes_after_the_worker_has_left_declares_nobody_dead(log: Listener) -> None:
    """By then it may work under another id, and drive what it has just claimed."""
    heart, died = Slow(), asyncio.Event()
    pulse = Pulse(heart, log, died.set)
    pulse.start()
    await asyncio.to_thread(heart.wait_for, 1)
    pulse.stop()
    heart.answer.set()
    await asyncio.to_thread(pulse._thread.join, 30)
    assert not died.is_set()


@pytest.mark.parametrize("heart", [None, Beats()], ids=["without a heart", "with one"])
async def test_a_blocked_loop_is_reported_once_with_the_lines_that_block_it(log: Listener, heart: Any) -> None:
    """Whoever reads the log knows where to look, and hears when it is over and how long it took."""
    pulse = Pulse(heart, log, lambda: None)
    pulse.start()
    block_on(lambda: log.wait_for("the event loop is blocked"))
    await asyncio.to_thread(log.wait_for, "the event loop turns again")
    pulse.stop()
    stack = log.wait_for("the event loop is blocked")["stack"]
    assert "test_pulse.py" in stack
    assert "block_on(lambda: log.wait_for" in stack
    assert log.wait_for("the event loop turns again")["blocked_seconds"] >= 1.0
    assert len(log.lines) == 2


async def test_a_loop_that_turns_is_not_reported(log: Listener) -> None:
    """However much it has to do, as long as it takes turns."""
    heart = Beats()
    pulse = Pulse(heart, log, lambda: None)
    pulse.start()
    await asyncio.to_thread(heart.wait_for, 12)
    pulse.stop()
    assert log.lines == []


class Mortal(MemoryStore):
    """A store with hearts, in which a test can declare a worker dead."""

    def __init__(self) -> None:
        super().__init__()
        self.hearts: dict[WorkerId, Beats] = {}
        self.late: list[Commit] = []

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        """Write, and remember what the dead tried to write."""
        if not self.hearts[lease.worker].alive:
            self.late.append(change)
        return super().commit(lease, change)

    def heart(self, worker: WorkerId) -> Beats:  # type: ignore[override]
        """Give a heart, and keep it at hand."""
        return self.hearts.setdefault(worker, Beats())


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Keeps a thread of a step busy until the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_worker_declared_dead_leaves_its_runs_at_once_and_works_on_as_another(stuck: threading.Event) -> None:
    """Its code is cancelled, what its threads return is dropped, nothing more is written; new runs are served."""
    store, hurdle, in_thread = Mortal(), Hurdle(), asyncio.Event()
    loop, done = asyncio.get_running_loop(), list[str]()

    def slow(word: str) -> str:
        loop.call_soon_threadsafe(in_thread.set)
        stuck.wait(20)
        return word

    @hf.durable
    async def tale(ctx: hf.Context, kind: str) -> str:
        try:
            if kind == "waits":
                await ctx.step(hurdle)
            elif kind == "in a thread":
                await ctx.step(slow, "late")
        except BaseException as error:
            done.append(f"{kind}: {type(error).__name__}")
            await ctx.emit("too late")
            raise
        return kind

    async with hf.open(store, hf.App(tale)) as runtime:
        runs = [await runtime.start(tale, kind) for kind in ("waits", "in a thread")]
        await soon(hurdle.reached.wait())
        await soon(in_thread.wait())
        assert runtime._worker is not None
        was = runtime._worker.id
        hurdle.reached.clear()
        in_thread.clear()
        await store.void(was, why="test")
        store.hearts[was].alive = False
        # Served by the same process under another name, the interrupted ones among them.
        assert await soon(runtime.run(tale, "new")) == "new"
        assert runtime._worker.id != was
        assert done == ["waits: CancelledError", "in a thread: CancelledError"]
        await soon(hurdle.reached.wait())
        hurdle.open.set()
        await soon(in_thread.wait())
        stuck.set()
        assert [await run.result(timeout=20) for run in runs] == ["waits", "in a thread"]
        for run in runs:
            assert await kinds_of(run) == ["RunStarted", "RunResumed", "StepCompleted", "RunFinished"]
        assert [worker.id for worker in await runtime.client.workers()] == [runtime._worker.id]
    assert store.hearts[was].closed_by is not None
    assert store.late == [], "it did not even try"


async def test_a_worker_whose_heart_beats_can_do_without_a_lock(tmp_path: Path) -> None:
    """Where no lock can be made a takeover only takes longer; where nothing else tells of a death, it is refused."""
    (tmp_path / "workers").write_text("not a folder")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return "done"

    store = Mortal()
    store.lock_folder = str(tmp_path / "workers")
    async with hf.open(store, hf.App(tale)) as runtime:
        assert await soon(runtime.run(tale)) == "done"
        assert [worker.lock for worker in await runtime.client.workers()] == ["unknown"]
    heartless = MemoryStore()
    heartless.lock_folder = store.lock_folder
    with pytest.raises(StoreUnavailable, match="cannot be made"):
        await hf.open(heartless, hf.App(tale))
