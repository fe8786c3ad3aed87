"""A fork has another run's history up to an entry, and goes on by itself from there."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

import holdfast as hf
from holdfast import events as ev
from holdfast.core.entry import Entry
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, seen, soon

paid = hf.Signal("paid", int)


async def ends_as(run: hf.Run[str]) -> str:
    """Return a run's result, in bounded time."""
    return await run.result(timeout=20)


def is_kind(kind: type[Entry]) -> Callable[[Entry], bool]:
    """Return what picks entries of one kind."""
    return lambda entry: isinstance(entry, kind)


def is_wait(entry: Entry, after: int) -> bool:
    """Say whether an entry behind another begins the wait for the signal."""
    return isinstance(entry, ev.StepStarted) and entry.step == "0/receive#1" and entry.seq > after


async def sound(runtime: hf.Runtime) -> bool:
    """Say whether nothing is wrong with the store, each run's chain included."""
    return [finding async for finding in runtime.client.verify()] == []


class Tally:
    """Steps that count how often each was performed, and remember the idempotency keys they were given."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.keys: dict[str, list[str]] = {}

    async def do(self, step: hf.Step[None], name: str) -> str:
        """Perform the step of that name."""
        self.calls[name] += 1
        self.keys.setdefault(name, []).append(step.idempotency_key)
        return f"{name}{self.calls[name]}"


async def test_a_fork_repeats_nothing_that_was_recorded_before_it(every: Stage) -> None:
    """Steps up to the entry return what the base recorded; those behind it are the fork's own, under its own keys."""
    tally = Tally()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return " ".join([await ctx.step(tally.do, name) for name in ("a", "b", "c")])

    async with every.open(tale) as runtime:
        base = await runtime.start(tale, key="mine")
        assert await ends_as(base) == "a1 b1 c1"
        fork = await base.fork(at=3, by="ann")
        assert await ends_as(fork) == "a1 b1 c2"
        assert tally.calls == {"a": 1, "b": 1, "c": 2}
        assert len(set(tally.keys["c"])) == 2
        assert (await runtime.get(key="mine")).id == base.id
        entries = await entries_of(fork)
        assert {entry.run for entry in entries} == {fork.id}
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        forked = entries[3]
        assert isinstance(forked, ev.RunForked)
        assert (forked.base, forked.base_seq, forked.by) == (base.id, 3, "ann")
        info, of = await fork.info(), await base.info()
        assert (info.base, info.base_seq, info.key, info.parent, info.root) == (base.id, 3, None, None, fork.id)
        assert [(one.id, one.at, one.retry) for one in of.forks] == [(fork.id, 3, False)]
        assert await sound(runtime)


async def test_what_is_derived_is_the_bases_up_to_the_fork_and_then_the_forks_own(every: Stage) -> None:
    """Ids and chance that recorded steps were asked with come again; new ones are no other run's, on every replay."""
    hurdle, drawn = Hurdle(), list[tuple[str, float]]()

    async def note(id: str, number: float) -> None:
        drawn.append((id, number))

    @hf.durable
    async def tale(ctx: hf.Context, stops: bool) -> str:
        for _ in range(3):
            await ctx.step(note, str(ctx.uuid()), ctx.random.random())
        if stops:
            await ctx.step(hurdle)
        return f"{ctx.uuid()} {ctx.random.random()}"

    async with every.open(tale) as runtime:
        base = await runtime.start(tale, True)
        await soon(hurdle.reached.wait())
        fork = await base.fork(at=2)
        await seen(fork, lambda entry: entry.seq == 5)
        assert len(drawn) == len(set(drawn)) == 5
    hurdle.open.set()
    async with every.open(tale) as runtime:
        ends = [await ends_as(await runtime.get(run.id)) for run in (base, fork)]
        assert len(set(ends)) == 2
        assert len(drawn) == 5
        second = await (await runtime.get(fork.id)).fork()
        assert await ends_as(second) not in ends


async def test_a_once_step_under_way_is_in_doubt_in_the_fork(every: Stage) -> None:
    """Nobody knows whether the base's attempt happens: the fork does not make another before somebody says."""
    tally, hurdle = Tally(), Hurdle()

    async def pay(step: hf.Step[None]) -> str:
        paid_before = await tally.do(step, "pay")
        if tally.calls["pay"] == 1:
            await hurdle()
        return paid_before

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(pay, effect="once", in_doubt="wait", timeout=1, name="pay")

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        fork = await base.fork()
        parked = await seen(fork, is_kind(ev.RunParked))
        assert isinstance(parked, ev.RunParked)
        assert "forked while it was under way" in parked.detail
        assert tally.calls == {"pay": 1}
        await fork.resolve("0/pay#1", hf.NOT_DONE, by="ann")
        every.clock.advance(2)
        assert await ends_as(fork) == "pay2"
        assert len(set(tally.keys["pay"])) == 1
        hurdle.open.set()
        assert await sound(runtime)


async def test_a_doubt_in_a_fork_goes_by_the_steps_own_policy(every: Stage) -> None:
    """A step that raises its doubt raises it in the fork too, and its code may go another way."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(hurdle, effect="once")
        except hf.InDoubt:
            return "unknown"
        return "paid"

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        assert await ends_as(await base.fork()) == "unknown"
        hurdle.open.set()
        assert await ends_as(base) == "paid"


async def test_a_keyed_step_under_way_is_sent_again_under_the_same_key(every: Stage) -> None:
    """Whoever is asked twice by base and fork knows that it is one and the same."""
    tally, hurdle = Tally(), Hurdle()

    async def pay(step: hf.Step[None]) -> str:
        await tally.do(step, "pay")
        await hurdle()
        return "paid"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(pay, effect="keyed")

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        fork = await base.fork()
        hurdle.open.set()
        assert [await ends_as(base), await ends_as(fork)] == ["paid", "paid"]
        assert len(tally.keys["pay"]) == 2
        assert len(set(tally.keys["pay"])) == 1


async def test_a_question_of_the_base_is_void_in_the_fork_which_asks_its_own(every: Stage) -> None:
    """Each is answered by itself, and neither by what was said to the other."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        decision = await ctx.ask("Send it?", expires=60)
        return f"{decision.yes} {decision.by}"

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await seen(base, is_kind(ev.RunParked))
        every.clock.advance(50)
        fork = await base.fork()
        await seen(fork, lambda entry: isinstance(entry, ev.RunParked) and entry.seq > 4)
        [of_base], [of_fork] = await base.questions(), await fork.questions()
        assert of_base.id != of_fork.id
        assert of_fork.expires_at == of_base.expires_at + timedelta(seconds=50)  # type: ignore[operator]
        await runtime.client.answer(of_fork.id, True, shown=of_fork.shown, by="ann")
        await runtime.client.answer(of_base.id, False, shown=of_base.shown, by="bob")
        assert [await ends_as(base), await ends_as(fork)] == ["False bob", "True ann"]
        assert await sound(runtime)


async def test_a_fork_waits_anew_for_a_signal_and_not_anew_for_a_time(every: Stage) -> None:
    """What was sent to the base is not the fork's, so its time to wait is whole; a time that was set stays."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.sleep(100)
        return str(await ctx.receive(paid, timeout=100))

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await seen(base, is_kind(ev.RunParked))
        every.clock.advance(90)
        early = await base.fork()
        every.clock.advance(20)
        begun = await seen(base, partial(is_wait, after=0))
        await base.signal(paid, 1)
        assert await ends_as(base) == "1"
        late = await base.fork(at=begun.seq)
        every.clock.advance(90)
        for fork, after in ((early, 4), (late, begun.seq)):
            await seen(fork, partial(is_wait, after=after))
            await fork.signal(paid, 2)
            assert await ends_as(fork) == "2"
        assert await sound(runtime)


async def test_a_fork_adopts_no_child_and_spawns_its_own(every: Stage) -> None:
    """One that had settled keeps its result; one that had not goes on as the base's, and the fork has another."""
    hurdle = Hurdle()
    started = Counter[str]()

    @hf.durable
    async def child(ctx: hf.Context, name: str) -> str:
        started[name] += 1
        if name == "slow" and started[name] == 1:
            await ctx.step(hurdle)
        return f"{name}{started[name]}"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        quick = await ctx.run(child, "quick")
        slow = await ctx.run(child, "slow")
        return f"{quick} {slow}"

    async with every.open(tale, child) as runtime:
        base = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        fork = await base.fork()
        assert await ends_as(fork) == "quick1 slow2"
        hurdle.open.set()
        assert (await ends_as(base)).startswith("quick1 slow")
        [forked] = [entry for entry in await entries_of(fork) if isinstance(entry, ev.RunForked)]
        assert forked.children == ["0/child#2"]
        spawned = [entry.child for entry in await entries_of(fork) if isinstance(entry, ev.ChildSpawned)]
        assert len(set(spawned)) == 3
        assert await sound(runtime)


async def test_a_fork_outlives_its_base_and_can_be_forked_itself(every: Stage) -> None:
    """What it shares stays with it when the runs that wrote it are deleted, and it goes on from there."""
    tally, hurdle = Tally(), Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        done = [await ctx.step(tally.do, "a" * 100_000), await ctx.step(tally.do, "b")]
        await ctx.step(hurdle)
        return done[0][-1] + " " + done[1]

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        middle = await base.fork(at=2)
        await seen(middle, lambda entry: entry.seq == 4)
        hurdle.open.set()
        assert [await ends_as(base), await ends_as(middle)] == ["1 b1", "1 b2"]
        last = await middle.fork(at=4)
        assert await ends_as(last) == "1 b2"
        assert await base.delete()
        assert await middle.delete()
        assert await ends_as(await last.fork(at=1)) == "2 b3"
        assert await ends_as(await last.fork(at=4)) == "1 b2"
        assert await sound(runtime)
        with pytest.raises(hf.NotFound):
            await base.fork()


async def test_a_fork_of_a_cancelled_run_begins_before_its_end_was_asked_for(every: Stage) -> None:
    """Who forks it wants it to go on; behind that entry its code was already told to stop."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.receive(paid)
        return "done"

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await seen(base, is_kind(ev.RunParked))
        await base.cancel()
        with pytest.raises(hf.RunError, match="cancelled"):
            await base.result(timeout=20)
        kinds = await kinds_of(base)
        asked = kinds.index("CancelReceived") + 1
        with pytest.raises(ValueError, match="end of run"):
            await base.fork(at=asked)
        fork = await base.fork()
        assert (await fork.info()).base_seq == asked - 1
        await fork.signal(paid, 1)
        assert await ends_as(fork) == "done"


@pytest.mark.parametrize(
    ("at", "said"),
    [(0, "from 1"), (True, "from 1"), ("2", "from 1"), (99, "has 3 entries"), (3, "is its ending")],
    ids=["none", "no number", "text", "beyond the head", "its ending"],
)
async def test_a_run_is_forked_only_at_an_entry_that_something_can_follow(stage: Stage, at: int, said: str) -> None:
    """What cannot be is refused with what can, and nothing is started."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(asyncio.sleep, 0, "done")

    async with stage.open(tale) as runtime:
        base = await runtime.start(tale)
        assert await ends_as(base) == "done"
        with pytest.raises(ValueError, match=said) as refused:
            await base.fork(at=at)
        assert refused.value.hint  # type: ignore[attr-defined]
        assert len(await runtime.runs()) == 1


async def test_a_run_that_began_anew_is_forked_in_any_of_its_generations(every: Stage) -> None:
    """Before `continue_as` the fork has the old input, behind it the new one; no idempotency key comes twice."""
    tally = Tally()

    @hf.durable
    async def tale(ctx: hf.Context, round: int) -> str:
        done = await ctx.step(tally.do, f"round {round} ")
        if round < 2:
            await ctx.continue_as(round + 1)
        return done

    async with every.open(tale) as runtime:
        base = await runtime.start(tale, 1)
        assert await ends_as(base) == "round 2 1"
        assert (await kinds_of(base))[2] == "RunContinued"
        assert await ends_as(await base.fork(at=1)) == "round 2 2"
        assert await ends_as(await base.fork(at=3)) == "round 2 3"
        assert tally.calls == {"round 1 ": 2, "round 2 ": 3}
        keys = [key for given in tally.keys.values() for key in given]
        assert len(set(keys)) == len(keys)


async def test_a_fork_has_what_its_base_had_left_of_its_budget(every: Stage) -> None:
    """Nobody gets around a budget by being tried again: what was spent stays spent."""
    broken = [True]

    async def act() -> None:
        if broken[0]:
            raise ConnectionError("no answer")

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        await ctx.step(int, "1", key="first")
        await ctx.step(act)
        return await ctx.step(int, "3", key="last")

    async with every.open(tale) as runtime:
        base = await runtime.start(tale, budget=hf.Budget(steps=2))
        with pytest.raises(hf.RunError):
            await soon(base.result())
        assert (await base.info()).budget == {"steps": {"total": 2, "free": 0, "reserved": 0, "spent": 2}}
        broken[0] = False
        again = await base.retry()
        with pytest.raises(hf.BudgetExceeded):
            await soon(again.result())
        assert (await again.info()).budget == {"steps": {"total": 0, "free": 0, "reserved": 0, "spent": 0}}
        assert await again.raise_budget(steps=1)
        assert await soon(again.result()) == 3
        assert not [finding async for finding in runtime.client.verify()]
