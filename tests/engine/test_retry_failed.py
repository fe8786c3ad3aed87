"""A run that failed is tried again as a fork from just before its ending, under its key."""

import asyncio

import pytest

import holdfast as hf
from holdfast import events as ev
from holdfast.core.entry import Entry
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, seen, soon
from tests.engine.test_forks import Tally, ends_as, sound


async def fails(run: hf.Run[str], why: str | None = None) -> None:
    """Wait until a run has failed."""
    with pytest.raises(hf.RunError, match=why) as failed:
        await run.result(timeout=20)
    assert failed.value.status == "failed"


def reopened(entries: list[Entry]) -> list[str]:
    """Return the steps that the last fork in a journal reopened."""
    return [entry for entry in entries if isinstance(entry, ev.RunForked)][-1].reopened


class Weather:
    """Something outside that is broken until it is mended."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.broken = True

    async def call(self, step: hf.Step[None], name: str) -> str:
        """Perform a step, if things are well."""
        done = await self.tally.do(step, name)
        if self.broken:
            raise ConnectionError("no answer")
        return done


@pytest.mark.parametrize("effect", [hf.Effect.REPEAT, hf.Effect.KEYED])
async def test_a_step_that_failed_is_tried_again_and_the_others_are_not(every: Stage, effect: hf.Effect) -> None:
    """It is sent under the idempotency key of its first attempt, and the key of the run leads to the new one."""
    weather, tally = Weather(), Tally()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        before = await ctx.step(tally.do, "a")
        tried = await ctx.step(weather.call, "b", effect=effect)
        return f"{before} {tried} {await ctx.step(tally.do, 'c')}"

    async with every.open(tale) as runtime:
        base = await runtime.start(tale, key="mine", labels={"of": "ann"})
        await fails(base, "no answer")
        weather.broken = False
        again = await base.retry(by="ann")
        assert await ends_as(again) == "a1 b2 c1"
        assert again.id != base.id
        assert (await runtime.get(key="mine")).id == again.id
        assert await (await runtime.start(tale, key="mine")).result(timeout=20) == "a1 b2 c1"
        assert len(set(weather.tally.keys["b"])) == 1
        assert tally.calls == {"a": 1, "c": 1}
        assert reopened(await entries_of(again)) == ["0/call#1"]
        info, of = await again.info(), await base.info()
        assert (info.key, info.base, dict(info.labels)) == ("mine", base.id, {"of": "ann"})
        assert (of.key, of.status, [fork.retry for fork in of.forks]) == (None, "failed", [True])
        await fails(base, "no answer")
        assert await sound(runtime)


async def test_code_that_was_mended_goes_on_where_it_failed(every: Stage) -> None:
    """An error between steps leaves nothing to reopen: the code runs again over what was recorded."""
    tally = Tally()

    @hf.durable(name="tale")
    async def wrong(ctx: hf.Context) -> str:
        await ctx.step(tally.do, "a")
        raise ZeroDivisionError("a slip")

    @hf.durable(name="tale")
    async def right(ctx: hf.Context) -> str:
        return f"{await ctx.step(tally.do, 'a')} {await ctx.step(tally.do, 'b')}"

    async with every.open(wrong) as runtime:
        base = await runtime.start(wrong)
        await fails(base, "a slip")
    async with every.open(right) as runtime:
        again = await (await runtime.get(base.id)).retry()
        assert await again.result(timeout=20) == "a1 b1"
        assert reopened(await entries_of(again)) == []


async def test_a_failure_that_the_code_caught_and_went_on_from_stays(every: Stage) -> None:
    """A success in its place would lead the code another way than it went."""
    first, second = Weather(), Weather()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            return await ctx.step(first.call, "a")
        except hf.StepError:
            return f"instead {await ctx.step(second.call, 'b')}"

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await fails(base)
        first.broken = second.broken = False
        again = await base.retry()
        assert await ends_as(again) == "instead b2"
        assert first.tally.calls == {"a": 1}
        assert reopened(await entries_of(again)) == ["0/call#2"]


async def test_of_branches_those_that_failed_are_tried_again(every: Stage) -> None:
    """What others of the set had done is not done again, however deep they lie."""
    weather, tally = Weather(), Tally()

    async def inner(ctx: hf.Context) -> str:
        return " ".join(await ctx.gather(ctx.step(tally.do, "b"), ctx.step(weather.call, "c")))

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        got = await ctx.gather(ctx.step(tally.do, "a"), inner(ctx), ctx.step(weather.call, "d"))
        return " ".join(got)

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await fails(base)
        weather.broken = False
        again = await base.retry()
        assert await ends_as(again) == "a1 b1 c2 d2"
        assert len(reopened(await entries_of(again))) == 2
        assert await sound(runtime)


async def test_a_step_that_is_reopened_has_all_its_attempts_again(every: Stage) -> None:
    """The policy counts from where somebody asked for another try."""
    weather = Weather()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(weather.call, "a", retry=hf.Retry(attempts=2, first=0.001))

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await fails(base)
        again = await base.retry()
        await fails(again)
        assert weather.tally.calls == {"a": 4}
        with pytest.raises(hf.Conflict, match="was tried again as run") as known:
            await base.retry()
        assert known.value.run == again.id
        weather.broken = False
        third = await again.retry()
        assert await ends_as(third) == "a5"
        assert len(set(weather.tally.keys["a"])) == 1
        assert await sound(runtime)


async def test_a_doubt_that_made_a_run_fail_waits_for_a_word_when_it_is_retried(every: Stage) -> None:
    """Asking for another try is not saying that the effect did not happen: it is not performed before somebody does."""
    weather = Weather()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(weather.call, "pay", effect="once", timeout=1)

    async with every.open(tale) as runtime:
        base = await runtime.start(tale, key="mine")
        await fails(base, "may or may not have happened")
        weather.broken = False
        again = await base.retry()
        await seen(again, lambda entry: isinstance(entry, ev.RunParked))
        assert weather.tally.calls == {"pay": 1}
        await again.resolve("0/call#1", {"not": "text"})
        await seen(again, lambda entry: isinstance(entry, ev.StepDoubted) and entry.seq > 6)
        await again.resolve("0/call#1", hf.NOT_DONE, by="ann")
        every.clock.advance(2)
        assert await ends_as(again) == "pay2"
        assert len(set(weather.tally.keys["pay"])) == 1
        assert await sound(runtime)


async def test_what_the_code_gave_up_waiting_for_is_begun_again(every: Stage) -> None:
    """A step or a wait that a timeout of the code's own cut short, and made the run fail, is not cut short for ever."""
    hurdle, patience = Hurdle(), [0.2]
    word = hf.Signal("word", str)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        async with asyncio.timeout(patience[0]):
            _, _, said = await ctx.gather(
                ctx.step(hurdle), ctx.step(hurdle, effect="keyed", key="k"), ctx.receive(word)
            )  # fmt: skip
            return said

    async with every.open(tale) as runtime:
        base = await runtime.start(tale)
        await fails(base, "TimeoutError")
        hurdle.open.set()
        patience[0] = 60
        again = await base.retry()
        assert len(reopened(await entries_of(again))) == 3
        await again.signal(word, "well")
        assert await ends_as(again) == "well"
        assert await sound(runtime)


async def test_a_signal_that_the_failed_run_had_not_taken_is_the_retrys(every: Stage) -> None:
    """Whoever sent it was told that it is accepted; one that was taken is part of the history, and not twice there."""
    weather, paid = Weather(), hf.Signal("paid", int)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        first = await ctx.receive(paid)
        await ctx.step(weather.call, "a")
        second = await ctx.receive(paid)
        return f"{first} {second}"

    async with every.open(tale, work=False) as runtime:
        base = await runtime.start(tale)
        for number in (1, 2):
            await base.signal(paid, number, key=str(number))
    async with every.open(tale) as runtime:
        await fails(await runtime.get(base.id))
        weather.broken = False
        again = await (await runtime.get(base.id)).retry()
        assert await again.result(timeout=20) == "1 2"
        assert await sound(runtime)


async def test_however_many_ask_a_run_is_retried_once(every: Stage) -> None:
    """Who comes second, at once or later, is given the run that the first one started."""
    weather = Weather()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(weather.call, "a")

    async with every.open(tale) as runtime:
        base = await runtime.start(tale, key="mine")
        await fails(base)
        weather.broken = False
        runs = await asyncio.gather(*(base.retry(by=who) for who in ("ann", "bob", "cy")))
        assert len({run.id for run in runs}) == 1
        assert await ends_as(runs[0]) == "a2"
        assert (await base.retry()).id == runs[0].id
        assert len(await runtime.runs()) == 2


@pytest.mark.parametrize("ends", ["completed", "cancelled"])
async def test_a_run_that_did_not_fail_is_not_retried(stage: Stage, ends: str) -> None:
    """Whoever asks is told so, and how to begin another from it."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.sleep(0 if ends == "completed" else 60)
        return "done"

    async with stage.open(tale) as runtime:
        base = await runtime.start(tale)
        if ends == "cancelled":
            await base.cancel()
            with pytest.raises(hf.RunError, match="cancelled"):
                await base.result(timeout=20)
        else:
            assert await ends_as(base) == "done"
        with pytest.raises(hf.Conflict, match=f"had ended before: {ends}") as refused:
            await base.retry()
        assert "holdfast fork" in refused.value.hint


class Nest:
    """A parent and a child whose last step fails until it is mended."""

    def __init__(self) -> None:
        self.weather, self.tally = Weather(), Tally()

        @hf.durable
        async def child(ctx: hf.Context) -> str:
            return f"{await ctx.step(self.tally.do, 'a')} {await ctx.step(self.weather.call, 'b')}"

        @hf.durable
        async def parent(ctx: hf.Context) -> str:
            of_child = await ctx.run(child)
            return f"{of_child} {await ctx.step(self.tally.do, 'c')}"

        self.child, self.parent = child, parent


async def test_a_parent_is_retried_with_the_child_that_made_it_fail(every: Stage) -> None:
    """The child goes on from its own past too, as a child of the new run: nothing it did is done again."""
    nest = Nest()
    async with every.open(nest.parent, nest.child) as runtime:
        base = await runtime.start(nest.parent)
        await fails(base)
        nest.weather.broken = False
        again = await base.retry()
        assert await ends_as(again) == "a1 b2 c1"
        assert nest.tally.calls == {"a": 1, "c": 1}
        children = [entry.child for entry in await entries_of(again) if isinstance(entry, ev.ChildSpawned)]
        first, second = [await (await runtime.get(child)).info() for child in children]
        assert (first.parent, second.parent, second.root, second.base) == (base.id, again.id, again.id, first.id)
        assert await sound(runtime)


async def test_a_parent_is_not_confused_by_the_retry_of_its_child(every: Stage) -> None:
    """It was told that the child failed, and that stays so; what the fork comes to is nobody's but the asker's."""
    nest = Nest()
    other = hf.Signal("other", str)

    @hf.durable
    async def waits(ctx: hf.Context) -> str:
        try:
            await ctx.run(nest.child)
        except hf.RunError:
            said = await ctx.receive(other)
            return f"without it, {said}"
        return "with it"

    async with every.open(waits, nest.child) as runtime:
        base = await runtime.start(waits)
        settled = await seen(base, lambda entry: isinstance(entry, ev.ChildSettled))
        assert isinstance(settled, ev.ChildSettled)
        nest.weather.broken = False
        again = await (await runtime.get(settled.child)).retry()
        assert await again.result(timeout=20) == "a1 b2"
        assert (await again.info()).parent is None
        await base.signal(other, "on")
        assert await ends_as(base) == "without it, on"
        assert (await kinds_of(base)).count("ChildSettled") == 1


class Brood:
    """A parent that spawns a child, fails at something else until that is mended, and then asks for the child."""

    def __init__(self) -> None:
        self.weather, self.tally = Weather(), Tally()
        self.of_child, self.of_parent = Hurdle(), Hurdle()

        @hf.durable
        async def child(ctx: hf.Context) -> str:
            done = await ctx.step(self.tally.do, "a" * 100_000)
            await ctx.step(self.of_child, effect="keyed")
            return done

        @hf.durable
        async def parent(ctx: hf.Context) -> str:
            spawned = await ctx.spawn(child)
            await ctx.step(self.of_parent)
            other = await ctx.step(self.weather.call, "b")
            try:
                return f"{(await spawned.result())[-2:]} {other}"
            except hf.RunError as error:
                return str(error)

        self.child, self.parent = child, parent

    async def failed(self, runtime: hf.Runtime, *, child_completes: bool) -> tuple[hf.Run[str], hf.Run[str]]:
        """Return a parent that failed while its child was under way, or had completed unasked; and the child."""
        base = await runtime.start(self.parent)
        spawned = await seen(base, lambda entry: isinstance(entry, ev.ChildSpawned))
        assert isinstance(spawned, ev.ChildSpawned)
        child = await runtime.get(spawned.child)
        await soon(self.of_child.reached.wait())
        if child_completes:
            self.of_child.open.set()
            await child.result(timeout=20)
        self.of_parent.open.set()
        await fails(base)
        self.of_child.open.set()
        if not child_completes:
            with pytest.raises(hf.RunError, match="cancelled"):
                await child.result(timeout=20)
        self.weather.broken = False
        return base, child


@pytest.mark.parametrize("child_completes", [True, False], ids=["completed unasked", "cancelled with its parent"])
async def test_a_child_that_was_left_is_taken_up_from_its_past(every: Stage, child_completes: bool) -> None:
    """Its result counts if it has one; otherwise it goes on from before its end was asked for."""
    brood = Brood()
    async with every.open(brood.parent, brood.child) as runtime:
        base, child = await brood.failed(runtime, child_completes=child_completes)
        again = await base.retry()
        assert await ends_as(again) == "a1 b2"
        assert len((await child.info()).forks) == (0 if child_completes else 1)
        if child_completes:
            assert await base.delete()
            assert await child.delete()
        assert await sound(runtime)


async def test_a_child_whose_past_is_gone_is_not_begun_again(every: Stage) -> None:
    """Nobody knows what it had done: for the run that is tried again it has failed, and its code may decide."""
    brood = Brood()
    async with every.open(brood.parent, brood.child) as runtime:
        base, child = await brood.failed(runtime, child_completes=False)
        assert await child.delete()
        assert "it was deleted" in await ends_as(await base.retry())
        assert len(brood.tally.calls) == 1
