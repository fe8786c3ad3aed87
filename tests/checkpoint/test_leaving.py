"""How a loop is left decides what becomes of its checkpoint; and what was put off is not lost on the way."""

import asyncio
import contextlib
from typing import Any

import pytest

import holdfast as hf
from holdfast import checkpoint
from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.errors import CheckpointOwned, Damaged, Lost, RunError, StoreUnavailable, UnknownEntry
from holdfast.core.ids import RunId
from holdfast.engine.checkpoint import AsyncCheckpoint
from holdfast.engine.keeper import Keeper
from holdfast.engine.log import Log
from holdfast.engine.taking import take
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from tests.checkpoint.leaving import Place, shut_down
from tests.engine.stage import soon
from tests.rigs.waiting import until

pytestmark = pytest.mark.anyio


class Failing(MemoryStore):
    """A store that does not answer when it is told not to; `late` ones have done what they were asked."""

    failing = late = False

    def commit(self, lease: Any, change: Any) -> Any:
        """Commit, or not; and answer, or not."""
        outcome = super().commit(lease, change) if self.late or not self.failing else None
        if outcome is None or self.late:
            raise StoreUnavailable("the disk is full")
        return outcome


class Time:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def opened(store: Store, clock: Time, *, every: float = 10.0) -> AsyncCheckpoint[Any]:
    """Return an open checkpoint that goes by this clock."""
    keeper = Keeper(store, Log())
    await keeper.join()
    lease = await take(keeper, "loop", {})
    saved: AsyncCheckpoint[Any] = AsyncCheckpoint(keeper, lease, "loop", every_seconds=every, clock=clock)
    await saved.begin("")
    return saved


async def closed(saved: AsyncCheckpoint[Any], error: BaseException | None = None) -> None:
    """Leave it, and the store."""
    await saved.close(error)
    await saved._keeper.leave()


async def stored(store: Store, run: str | None) -> list[Any]:
    """Return the numbers of messages that are on disk, save after save."""
    assert run is not None
    async with hf.open(store, work=False) as runtime:
        events = [event async for event in (await runtime.get(run)).events(follow=False)]
    return [event.count for event in events if isinstance(event, hf.events.CheckpointSaved)]


async def test_a_save_that_comes_too_soon_is_put_off_and_the_next_takes_its_place() -> None:
    """The first is written at once, those within the window are not, and the first behind it is."""
    store, clock = MemoryStore(), Time()
    saved = await opened(store, clock)
    assert await saved.save([1])
    assert not await saved.save([1, 2])
    assert not await saved.save([1, 2, 3])
    assert await saved.load() == [1, 2, 3]
    clock.now += 10
    assert await saved.save([1, 2, 3, 4])
    assert await stored(store, saved.run) == [1, 4]
    await closed(saved)


async def test_what_was_put_off_is_written_when_the_window_is_over_though_nobody_saves() -> None:
    """A loop that waits for its model for an hour does not keep its last words to itself."""
    store = MemoryStore()
    async with checkpoint.open("loop", store=store, every=0.05) as saved:
        await saved.save([1])
        assert not await saved.save([1, 2])

        async def is_written() -> bool:
            return await stored(store, saved.run) == [1, 2]

        await until(is_written, what="what was put off")


@pytest.mark.parametrize("how", ["flush", "effect", "complete", "shutdown", "failure"])
async def test_nothing_that_was_put_off_is_left_behind(how: str) -> None:
    """A flush, an effect, each ending and a shutdown write it first."""
    store, clock = MemoryStore(), Time()
    saved = await opened(store, clock)
    await saved.save([1])
    assert not await saved.save([1, 2])
    error: BaseException | None = None
    match how:
        case "flush":
            await saved.flush()
        case "effect":
            await saved.effect("mail", lambda: None)
        case "complete":
            await saved.complete()
        case "shutdown":
            error = KeyboardInterrupt()
        case _:
            error = ValueError("no")
    if error is None:
        assert await stored(store, saved.run) == [1, 2]
    await closed(saved, error)
    assert await stored(store, saved.run) == [1, 2]


async def test_a_save_that_failed_does_not_use_up_the_window() -> None:
    """The next one is tried at once, and has it all."""
    store, clock = Failing(), Time()
    saved = await opened(store, clock)
    store.failing = True
    with pytest.raises(StoreUnavailable):
        await saved.save([1])
    with pytest.raises(StoreUnavailable):
        await saved.save([1, 2])
    store.failing = False
    assert await saved.save([1, 2, 3])
    assert not await saved.save([1, 2, 3, 4])
    await closed(saved)
    assert await stored(store, saved.run) == [3, 4]


async def do(saved: AsyncCheckpoint[Any], how: str, messages: list[Any]) -> None:
    """Ask for one of the verbs that write."""
    match how:
        case "save":
            await saved.save(messages)
        case "complete":
            await saved.complete()
        case "keep":
            await saved.keep("test")
        case _:
            await saved.effect("mail", len, "a")


@pytest.mark.parametrize("how", ["save", "complete", "keep", "effect"])
async def test_a_commit_whose_answer_was_lost_is_not_written_twice(how: str) -> None:
    """What the store holds is read before anything is written behind it."""
    store, clock = Failing(), Time()
    saved = await opened(store, clock, every=0.0)
    await saved.save([1])
    store.late = True
    with pytest.raises(StoreUnavailable):
        await do(saved, how, [1, 2])
    store.late = False
    if how == "effect":
        with pytest.raises(hf.InDoubt):
            await do(saved, how, [])
    else:
        await do(saved, how, [1, 2, 3])
    await closed(saved, KeyboardInterrupt())
    counts = await stored(store, saved.run)
    assert counts == ([1, 2, 3] if how == "save" else [1])
    row = await store.get(RunId(saved.run or ""))
    assert row is not None
    assert str(row.status) == ("completed" if how == "complete" else "waiting")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (None, "completed", ""),
        (KeyboardInterrupt(), "waiting", "interrupted: KeyboardInterrupt"),
        (SystemExit("bye"), "waiting", "interrupted: SystemExit: bye"),
        (asyncio.CancelledError(), "waiting", "interrupted: CancelledError"),
        (ValueError("no"), "failed", "ValueError: no"),
    ],
)
async def test_the_outcome_of_the_block_is_that_of_the_checkpoint(
    place: Place, error: BaseException | None, status: str, reason: str
) -> None:
    """It is written when the block is left, with what was said of it, and the error goes on."""
    async with contextlib.AsyncExitStack() as around:
        if error is not None:
            around.enter_context(pytest.raises(type(error)))
        saved = await around.enter_async_context(checkpoint.open("loop", store=place))
        run = saved.run
        await saved.save([1])
        if error is not None:
            raise error
    async with hf.open(place, work=False) as runtime:
        info = await (await runtime.get(run)).info()
    assert (info.status, info.reason.startswith(reason)) == (status, True)
    assert [one.run for one in await checkpoint.interrupted(store=place)] == ([run] if status == "waiting" else [])


async def test_a_store_that_fails_at_the_end_does_not_hide_why_the_loop_was_left() -> None:
    """The error that ends the block is the loop's own, and tells of the other."""
    store = Failing()
    own = ValueError("the loop's own")
    async with shut_down("loop", store=store, by=own) as saved:
        await saved.save([1])
        store.failing = True
    assert "the disk is full" in own.__notes__[0]
    store.failing = False
    assert [one.messages for one in await checkpoint.interrupted(store=store)] == [1]


async def test_whoever_asks_for_its_end_is_heard_at_the_next_save(place: Place) -> None:
    """What was saved is kept, the loop is told by an error, and the checkpoint is cancelled whoever swallows that."""
    async with checkpoint.open("loop", store=place) as saved:
        run = saved.run
        await saved.save([1])
        async with hf.open(place, work=False) as runtime:
            await (await runtime.get(run)).cancel(reason="enough", by="ann")
            for _ in range(2):
                with pytest.raises(RunError, match="cancelled: enough"):
                    await saved.save([1, 2])
            info = await (await runtime.get(run)).info()
            assert (info.status, info.reason) == ("cancelled", "cancelled: enough")
    assert await checkpoint.interrupted(store=place) == []


async def test_one_that_nobody_has_open_is_cancelled_by_any_worker(file: str) -> None:
    """Its loop may never come again: what was asked of it is not left waiting for that."""
    async with shut_down("loop", store=file) as saved:
        await saved.save([1])
    async with hf.open(file) as runtime:
        run = await runtime.get(saved.run)
        await run.cancel()
        with pytest.raises(RunError, match="cancelled"):
            await run.result(timeout=20)
    assert await checkpoint.interrupted(store=file) == []


async def test_a_worker_leaves_checkpoints_to_their_loops(file: str) -> None:
    """Not even code that has their very name is given one."""

    @hf.durable(name="holdfast:checkpoint")
    async def impostor(ctx: hf.Context, checkpoint: str) -> str:
        return "driven"

    async with shut_down("loop", store=file) as saved:
        await saved.save([1])

    @hf.durable
    async def other(ctx: hf.Context) -> None:
        return None

    async with hf.open(file, hf.App(impostor, other)) as runtime:
        await runtime.run(other)
        info = await (await runtime.get(saved.run)).info()
        assert (info.status, info.attempt) == ("waiting", 1)


async def test_a_failed_one_is_brought_back_by_a_retry(file: str) -> None:
    """The same id goes on from before its failure."""
    async with shut_down("loop", store=file, by=ValueError("no")) as saved:
        await saved.save([1, 2])
    async with hf.open(file, work=False) as runtime:
        await (await runtime.get(saved.run)).retry()
    assert [one.messages for one in await checkpoint.interrupted(store=file)] == [2]
    async with checkpoint.open("loop", store=file) as saved:
        assert await saved.load() == [1, 2]
        await saved.save([1, 2, 3])


async def test_one_that_kills_its_process_again_and_again_is_set_aside() -> None:
    """Opened in vain too often, it is quarantined with the reason; a person's retry lets it be opened again."""
    store = MemoryStore()
    for _ in range(limits.STALLS):
        saved = await opened(store, Time())
        await store.void(saved._keeper.id, why="killed")
        await saved._keeper.leave()
    with pytest.raises(RunError, match="quarantined") as refused:
        async with checkpoint.open("loop", store=store):
            pass
    assert "retry" in refused.value.hint
    assert await checkpoint.interrupted(store=store) == []
    async with hf.open(store, work=False) as runtime:
        await (await runtime.get(refused.value.run)).retry()
    async with checkpoint.open("loop", store=store) as again:
        await again.save([1])


async def test_a_damaged_one_is_refused_and_set_aside_and_no_other_is_touched() -> None:
    """Not found starts afresh, damaged does not: three answers, and only the first is none."""
    store = MemoryStore()
    async with shut_down("other", store=store) as saved:
        await saved.save(["other"])
    async with shut_down("loop", store=store) as saved:
        await saved.save(["loop"])
    run = RunId(saved.run or "")
    entries = store._entries[run]
    place = next(n for n, row in enumerate(entries) if row.kind == e.CheckpointSaved.__name__)
    entries[place] = entries[place]._replace(body=entries[place].body.replace(b"loop", b"pool"))
    for _ in range(2):
        with pytest.raises((Damaged, RunError), match=r"damaged|checksum|entry"):
            async with checkpoint.open("loop", store=store):
                pass
    assert [one.id for one in await checkpoint.interrupted(store=store)] == ["other"]
    row = await store.get(run)
    assert row is not None
    assert (str(row.status), row.owner) == ("quarantined", None)


async def test_one_of_a_newer_version_is_refused_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens again where it can be read."""
    store = MemoryStore()
    async with shut_down("loop", store=store) as saved:
        await saved.save([1])
    with monkeypatch.context() as older:
        older.delitem(e.KINDS, "CheckpointSaved")
        with pytest.raises(UnknownEntry):
            async with checkpoint.open("loop", store=store):
                pass
    async with checkpoint.open("loop", store=store) as saved:
        assert await saved.load() == [1]


async def test_messages_that_have_another_type_now_are_refused() -> None:
    """What is there is not thrown away for it."""
    store = MemoryStore()
    async with shut_down("loop", store=store) as saved:
        await saved.save(["one"])
    with pytest.raises(hf.HoldfastError, match=r"messages\[0\]"):
        async with checkpoint.open("loop", store=store, of=int):
            pass
    async with checkpoint.open("loop", store=store) as saved:
        assert await saved.load() == ["one"]


async def test_a_process_that_was_taken_for_dead_writes_nothing_more() -> None:
    """It has lost the checkpoint to another, and is told so by what no `except Exception` swallows."""
    store = MemoryStore()
    first = await opened(store, Time(), every=0.0)
    await first.save([1])
    await store.void(first._keeper.id, why="no sign of life")
    async with checkpoint.open("loop", store=store) as second:
        assert await second.load() == [1]
        for _ in range(2):
            with pytest.raises(Lost, match="another process"):
                await first.save([1, 2])
        with pytest.raises(Lost):
            await first.effect("mail", lambda: 1)
        await second.save([1, 3])
    await closed(first, Lost())
    assert await stored(store, second.run) == [1, 2]


async def test_an_owner_whose_pulse_alone_tells_is_believed_while_it_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine no lock can be looked at: whoever beats is refused to, who is silent for a lease is dead."""
    monkeypatch.setattr(limits, "LEASE_SECONDS", 0.6)
    store = MemoryStore()
    first = await opened(store, Time(), every=0.0)
    await first.save([1])
    second = Keeper(store, Log())
    await second.join()
    with pytest.raises(CheckpointOwned, match="process"):
        await take(second, "loop", {})
    beating = first._keeper._beating
    assert beating is not None
    beating.cancel()
    lease = await soon(take(second, "loop", {}))
    assert lease.row.attempt == 2
    with pytest.raises(Lost):
        await first.save([1, 2])
    await closed(first, Lost())
    await second.leave()
