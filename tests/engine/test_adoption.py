"""New code takes a run over and old code does not take it back; a run whose code is not there says which it needs."""

import asyncio
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.ids import new_worker_id
from holdfast.core.version import Served
from holdfast.engine.function import Durable
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, seen, soon, until

GO = hf.Signal("go", str)
ON = hf.Signal("on", str)
performed: list[str] = []


@pytest.fixture(autouse=True)
def nothing_performed() -> None:
    """Every test begins with a clean world."""
    performed.clear()


def tale_of(version: str) -> Durable[list[str], []]:
    """Return a function of a version that tells which versions did what."""

    async def act() -> str:
        performed.append(version)
        return version

    @hf.durable(name="tale")
    async def tale(ctx: hf.Context) -> list[str]:
        await ctx.receive(GO)
        first = await ctx.step(act, key="first")
        await ctx.receive(ON)
        return [first, await ctx.step(act, key="second")]

    return tale


async def begun(stage: Stage, version: str = "1") -> hf.Run[Any]:
    """Return a run that this version began, and that waits for its first signal."""
    tale = tale_of(version)
    async with stage.open(tale, version=version) as runtime:
        run = await runtime.start(tale, key="k")
        await parked(run, "signal")
    return run


async def signalled(stage: Stage, signal: hf.Signal[str]) -> None:
    """Send the run a signal while nobody drives it."""
    async with stage.open(work=False) as runtime:
        await (await runtime.get(key="k")).signal(signal, "x")


async def gone_on(stage: Stage, version: str) -> None:
    """Let a version take the run up by its first signal, until it waits for the second."""
    await signalled(stage, GO)
    async with stage.open(tale_of(version), version=version) as runtime:
        run = await runtime.get(key="k")
        await seen(run, lambda entry: isinstance(entry, events.StepStarted) and entry.waits == ["signal on"])
        await until_it_rests(run)


async def until_it_rests(run: hf.Run[Any]) -> None:
    """Wait until nobody drives it."""
    async with asyncio.timeout(20):
        while (await run.info()).status is hf.Status.RUNNING:  # noqa: ASYNC110 - nobody announces a lease
            await asyncio.sleep(0)


async def claimed(stage: Stage, version: str) -> int:
    """Return how many runs a worker of that version would be given."""
    store = await stage.store()
    (known,) = [known for known in await store.versions("tale") if known.code == version]
    await store.register(worker := new_worker_id(), lock=None)
    leases = await store.claim(worker, {"tale": Served(version, place=known.place)}, limit=9)
    await store.void(worker, why="test")
    await store.close()
    return len(leases)


def adoptions(entries: list[Any]) -> list[tuple[str, str]]:
    """Return who took a run over from whom."""
    return [(entry.before, entry.code) for entry in entries if isinstance(entry, events.SpecAdopted)]


async def test_an_earlier_version_is_not_given_a_run_that_a_later_one_has(every: Stage) -> None:
    """A worker left over from before the deploy leaves it, says why nobody drives it, and writes nothing."""
    await begun(every)
    await gone_on(every, "2")
    await signalled(every, ON)
    async with every.open(tale_of("1"), version="1") as runtime:
        run = await runtime.get(key="k")
        before = await kinds_of(run)
        with pytest.raises(
            hf.RunError, match="version 2 has it, and it goes forward only; the workers of 'tale' have 1"
        ):
            await run.result(timeout=20)
        assert (await run.info()).waiting_for == (await runtime.runs(name="tale"))[0].reason
        assert await kinds_of(run) == before
    async with every.open(tale_of("3"), version="3") as runtime:
        run = await runtime.get(key="k")
        assert await run.result(timeout=20) == ["2", "3"]
        assert adoptions(await entries_of(run)) == [("1", "2"), ("2", "3")]


async def test_the_version_that_has_a_run_goes_on_without_another_word(every: Stage) -> None:
    """Neither a fresh run nor one that its own version takes up again has an entry for that."""
    await begun(every)
    await gone_on(every, "1")
    await signalled(every, ON)
    async with every.open(tale_of("1"), version="1") as runtime:
        run = await runtime.get(key="k")
        assert await run.result(timeout=20) == ["1", "1"]
        assert adoptions(await entries_of(run)) == []


async def test_an_old_worker_leaves_a_run_whose_new_one_died_before_it_rested(every: Stage) -> None:
    """The row does not know yet who has it; the journal does. It is left once, and not looked at again."""
    hurdle = Hurdle()

    async def act() -> None:
        performed.append("second")

    def tale_with(step: Any) -> Any:
        async def code(ctx: hf.Context) -> None:
            await ctx.receive(GO)
            await ctx.step(step, key="second")

        return hf.durable(name="tale")(code)

    tale = tale_with(act)
    async with every.open(tale, version="1") as runtime:
        run = await runtime.start(tale, key="k")
        await parked(run, "signal")
    await signalled(every, GO)
    async with every.open(tale_with(hurdle), version="2") as runtime:
        await soon(hurdle.reached.wait())
    async with every.open(tale_with(act), version="1") as runtime:
        run = await runtime.get(key="k")
        with pytest.raises(hf.RunError, match="outdated: version 2 has taken it over, which is later than 1"):
            await run.result(timeout=20)
        entries = await entries_of(run)
        assert [entry.reason for entry in entries if isinstance(entry, events.RunParked)][-1] == "outdated"
    assert performed == []
    assert await claimed(every, "1") == 0
    hurdle.open.set()
    async with every.open(tale_with(hurdle), version="2") as runtime:
        assert await (await runtime.get(key="k")).result(timeout=20) is None


async def test_who_takes_a_run_over_says_so_on_disk_before_anything_is_done(every: Stage) -> None:
    """Even a step that writes no intent is performed only once the entry is there."""
    hurdle = Hurdle()

    async def act() -> None:
        performed.append("first")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(act)
        await ctx.step(hurdle)

    async with every.open(tale, version="1") as runtime:
        await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
    hurdle.reached.clear()
    async with every.open(tale, version="2") as runtime:
        await soon(hurdle.reached.wait())
        assert (await kinds_of(await runtime.get(key="k")))[-2:] == ["RunResumed", "SpecAdopted"]
    hurdle.open.set()
    async with every.open(tale, version="2") as runtime:
        await (await runtime.get(key="k")).result(timeout=20)
    assert performed == ["first"]


async def test_a_person_may_give_a_run_to_an_earlier_version(every: Stage) -> None:
    """After a release was taken back, `retry` lets the code that is there have it; that is recorded like any other."""
    await begun(every)
    await gone_on(every, "2")
    await signalled(every, ON)
    async with every.open(tale_of("1"), version="1") as runtime:
        run = await runtime.get(key="k")
        with pytest.raises(hf.RunError, match="version 2 has it"):
            await run.result(timeout=20)
        await run.retry()
        await seen(run, lambda entry: isinstance(entry, events.RunFinished))
        assert await run.result(timeout=20) == ["2", "1"]
        assert adoptions(await entries_of(run)) == [("1", "2"), ("2", "1")]


async def test_a_version_that_diverged_has_not_taken_the_run_over(every: Stage) -> None:
    """It was refused before anything was done: the code that wrote the run may still have it."""

    async def other(ctx: hf.Context) -> None:
        await ctx.sleep(1)

    await begun(every)
    await signalled(every, GO)
    async with every.open(hf.durable(name="tale")(other), version="2") as runtime:
        await parked(await runtime.get(key="k"), "diverged")
    await signalled(every, ON)
    async with every.open(tale_of("1"), version="1") as runtime:
        run = await runtime.get(key="k")
        assert await run.result(timeout=20) == ["1", "1"]
        assert adoptions(await entries_of(run)) == []


async def test_no_branch_acts_before_every_branch_has_followed_what_is_recorded(every: Stage) -> None:
    """The first branch comes to something new at once; the second diverges a few steps later, and before that."""
    hurdle = Hurdle()

    async def act(item: str) -> str:
        performed.append(item)
        return item

    def tale_with(items: list[str]) -> Any:
        async def code(ctx: hf.Context) -> None:
            async def first() -> None:
                await ctx.step(act, "one")
                await ctx.step(hurdle)

            async def second() -> None:
                for item in items:
                    await asyncio.sleep(0)
                    await ctx.step(act, item)

            await ctx.gather(first(), second())

        return hf.durable(name="tale")(code)

    tale = tale_with(["x", "y", "z"])
    async with every.open(tale, version="1") as runtime:
        run = await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
        await until(lambda: "z" in performed)
        await seen(run, lambda entry: isinstance(entry, events.StepCompleted) and entry.step.endswith("2/act#3"))
    hurdle.reached.clear()
    async with every.open(tale_with(["x", "y", "other"]), version="2") as runtime:
        run = await runtime.get(key="k")
        info = await parked(run, "diverged")
        assert adoptions(await entries_of(run)) == []
    assert "0/gather#1.2/act#3" in info.reason
    assert not hurdle.reached.is_set()


async def test_a_client_that_drives_nothing_keeps_no_worker_from_its_runs(every: Stage) -> None:
    """Whoever only starts runs may have another version, or none; it is not one that was served."""
    tale = tale_of("1")
    async with every.open(tale, version="1") as runtime:
        async with every.open(tale, version="of the web", work=False) as client:
            await client.start(tale, key="k")
        run = await runtime.get(key="k")
        await parked(run, "signal")
        assert adoptions(await entries_of(run)) == [("of the web", "1")]


async def test_a_child_is_of_the_version_that_spawned_it(every: Stage) -> None:
    """An old worker does not take the children of new code, and those of a pinned run are pinned."""

    @hf.durable
    async def child(ctx: hf.Context) -> str:
        return await ctx.receive(GO)

    @hf.durable
    async def parent(ctx: hf.Context) -> str:
        return await ctx.run(child)

    for pin in (False, True):
        async with every.open(parent, child, version="2") as runtime:
            run = await runtime.start(parent, pin=pin)
            await parked(run, "child")
            (row,) = await runtime.runs(name="child", limit=1)
            started = (await entries_of(await runtime.get(row.id)))[0]
            assert isinstance(started, events.RunStarted)
            assert (started.code, started.pin) == ("2", pin)
            await (await runtime.get(row.id)).signal(GO, "x")
            assert await run.result(timeout=20) == "x"


async def test_a_run_that_nobody_serves_says_so_and_goes_on_when_somebody_comes(every: Stage) -> None:
    """It is not stuck and nobody need touch it: a worker with its code is all that it waits for."""

    @hf.durable
    async def other(ctx: hf.Context) -> None:
        """Do nothing."""

    await begun(every)
    await signalled(every, GO)
    await signalled(every, ON)
    async with every.open(other, version="9") as runtime:
        run = await runtime.get(key="k")
        info = await run.info()
        assert (info.status, info.waiting_for) == (hf.Status.WAITING, "code: no worker serves 'tale'")
        with pytest.raises(hf.Conflict, match="waits for its code"):
            await run.retry()
        async with every.open(tale_of("1"), version="1"):
            assert await run.result(timeout=20) == ["1", "1"]


async def test_whoever_names_a_run_has_it_driven_by_the_code_at_hand(stage: Stage) -> None:
    """`hf.run` is a person's word, like `retry`: code that was put back to what it was goes on with its own run."""
    await begun(stage)
    await gone_on(stage, "2")
    await signalled(stage, ON)
    put_back, store = tale_of("0"), f"sqlite:///{stage.path}"
    assert await asyncio.to_thread(lambda: hf.run(put_back, key="k", store=store)) == ["2", "0"]


async def test_a_worker_that_comes_to_serve_more_says_so(every: Stage) -> None:
    """What `start` was given counts as served: nobody is told that its code is not there."""
    tale = tale_of("1")
    async with every.open(version="1") as runtime:
        await parked(await runtime.start(tale, key="k"), "signal")
        async with asyncio.timeout(20):
            while not [worker for worker in await runtime.client.workers() if "tale" in worker.serves]:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0)
