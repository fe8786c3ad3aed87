"""A run goes on from its last committed entry: recorded steps are not performed again, in any order but their own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, soon

Tale = Callable[..., Awaitable[Any]]


class Scribe:
    """Steps that write down each time they are performed; one of them can be a hurdle."""

    def __init__(self) -> None:
        self.performed: list[str] = []
        self.hurdle: Hurdle | None = None
        self.stops_at = ""

    async def note(self, word: str) -> str:
        """Write a word down and return it in capitals."""
        self.performed.append(word)
        if word == self.stops_at and self.hurdle is not None:
            await self.hurdle()
        return word.upper()

    async def draw(self, word: str) -> str:
        """Another step with the same input and result."""
        self.performed.append(f"drawn {word}")
        return word.upper()

    def stop_at(self, word: str) -> Hurdle:
        """Stop where a word is noted."""
        self.stops_at, self.hurdle = word, Hurdle()
        return self.hurdle


@pytest.fixture
def scribe() -> Scribe:
    """A scribe with an empty page."""
    return Scribe()


@pytest.mark.parametrize("killed_at", ["a", "b", "c", "d"])
async def test_what_was_committed_is_not_performed_again(stage: Stage, scribe: Scribe, killed_at: str) -> None:
    """After k of 4 steps exactly the other 4 - k are performed, and the result is that of an unbroken run."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        return [await ctx.step(scribe.note, word) for word in "abcd"]

    hurdle = scribe.stop_at(killed_at)
    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
    scribe.performed.clear()
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(key="k", of=tale)).result(timeout=20) == ["A", "B", "C", "D"]
        assert scribe.performed == list("abcd"["abcd".index(killed_at) :])
        assert (await kinds_of(run := await runtime.get(run.id))).count("StepCompleted") == 4
        assert (await run.info()).attempt == 2


async def test_a_finished_run_performs_nothing_when_it_is_asked_for_again(stage: Stage, scribe: Scribe) -> None:
    """Same key, same run: a retry of the caller gets the result that is there."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(scribe.note, "a")

    for _ in range(3):
        async with stage.open(tale) as runtime:
            assert await soon(runtime.run(tale, key="k")) == "A"
    assert scribe.performed == ["a"]


async def test_a_run_resumes_as_often_as_it_takes(stage: Stage, scribe: Scribe) -> None:
    """Each life performs what the one before did not commit; each resume is an entry with its fence."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return len([await ctx.step(scribe.note, word) for word in "abcd"])

    for word in "abcd":
        hurdle = scribe.stop_at(word)
        async with stage.open(tale) as runtime:
            run = await runtime.start(tale, key="k")
            await soon(hurdle.reached.wait())
    scribe.stops_at = ""
    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, key="k")
        assert await run.result(timeout=20) == 4
        resumed = [entry for entry in await entries_of(run) if isinstance(entry, events.RunResumed)]
    assert [entry.fence for entry in resumed] == [2, 3, 4, 5]
    assert [entry.attempt for entry in resumed] == [2, 3, 4, 5]
    assert scribe.performed == ["a", "a", "b", "b", "c", "c", "d", "d"]


def original(scribe: Scribe) -> Tale:
    """The code that wrote the journal: a, b and then a hurdle."""

    async def tale(ctx: hf.Context, word: str = "z") -> str:
        await ctx.step(scribe.note, "a")
        await ctx.step(scribe.note, "b")
        return await ctx.step(scribe.note, "stop")

    return tale


def renamed(scribe: Scribe) -> Tale:
    """The first step is another function."""

    async def tale(ctx: hf.Context) -> str:
        await ctx.step(scribe.draw, "a")
        await ctx.step(scribe.note, "b")
        return await ctx.step(scribe.note, "stop")

    return tale


def reordered(scribe: Scribe) -> Tale:
    """The two recorded steps are swapped."""

    async def tale(ctx: hf.Context) -> str:
        await ctx.step(scribe.note, "b")
        await ctx.step(scribe.note, "a")
        return await ctx.step(scribe.note, "stop")

    return tale


def inserted(scribe: Scribe) -> Tale:
    """A step comes between the recorded ones."""

    async def tale(ctx: hf.Context) -> str:
        await ctx.step(scribe.note, "a")
        await ctx.step(scribe.draw, "new")
        await ctx.step(scribe.note, "b")
        return await ctx.step(scribe.note, "stop")

    return tale


def inserted_first(scribe: Scribe) -> Tale:
    """A step comes before the recorded ones."""

    async def tale(ctx: hf.Context) -> str:
        await ctx.step(scribe.note, "new", key="new")
        await ctx.step(scribe.note, "a")
        await ctx.step(scribe.note, "b")
        return await ctx.step(scribe.note, "stop")

    return tale


def deleted(scribe: Scribe) -> Tale:
    """The second recorded step is gone."""

    async def tale(ctx: hf.Context) -> str:
        await ctx.step(scribe.note, "a")
        return await ctx.step(scribe.note, "stop")

    return tale


def cut_short(scribe: Scribe) -> Tale:
    """The code ends before the recorded steps do."""

    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(scribe.note, "a")

    return tale


def changed_input(scribe: Scribe) -> Tale:
    """The second step gets another argument."""

    async def tale(ctx: hf.Context) -> str:
        await ctx.step(scribe.note, "a")
        await ctx.step(scribe.note, "B")
        return await ctx.step(scribe.note, "stop")

    return tale


def changed_key(scribe: Scribe) -> Tale:
    """The first step got a key of its own."""

    async def tale(ctx: hf.Context) -> str:
        await ctx.step(scribe.note, "a", key="first")
        await ctx.step(scribe.note, "b")
        return await ctx.step(scribe.note, "stop")

    return tale


def changed_type(scribe: Scribe) -> Tale:
    """The first step's recorded result is read as another type."""

    async def tale(ctx: hf.Context) -> str:
        await ctx.step(scribe.note, "a", returns=int)
        await ctx.step(scribe.note, "b")
        return await ctx.step(scribe.note, "stop")

    return tale


def swallowing(scribe: Scribe) -> Tale:
    """The code catches whatever its steps raise and goes on to others."""

    async def tale(ctx: hf.Context) -> str:
        for word in ("new", "a", "b", "stop", "more"):
            try:
                await ctx.step(scribe.draw, word)
            except Exception:
                continue
        return "made it"

    return tale


def emitting(scribe: Scribe) -> Tale:
    """Something else than a step comes where a step was."""

    async def tale(ctx: hf.Context) -> str:
        ctx.now()
        return await ctx.step(scribe.note, "stop")

    return tale


DIVERGED: list[tuple[Callable[[Scribe], Tale], str, str]] = [
    (renamed, "'0/note#1'", "'0/draw#1'"),
    (reordered, "'0/note#1' with input", "another input"),
    (inserted, "'0/note#2'", "'0/draw#1'"),
    (inserted_first, "'0/note#1'", "'0/=new'"),
    (deleted, "'0/note#2' with input", "another input"),
    (cut_short, "'0/note#2'", "the end of the run"),
    (changed_input, "'0/note#2' with input", "another input"),
    (changed_key, "'0/note#1'", "'0/=first'"),
    (changed_type, "'0/note#1'", "int"),
    (swallowing, "'0/note#1'", "'0/draw#1'"),
    (emitting, "'0/note#1'", "'0/now#1'"),
]


@pytest.mark.parametrize(("change", "recorded", "asked"), DIVERGED, ids=[case[0].__name__ for case in DIVERGED])
async def test_changed_code_is_refused_before_any_new_effect(
    stage: Stage, scribe: Scribe, change: Callable[[Scribe], Tale], recorded: str, asked: str
) -> None:
    """Divergence stops the run with what was recorded and what was asked; the code that wrote it can go on."""
    hurdle = scribe.stop_at("stop")
    written, new = hf.durable(name="tale")(original(scribe)), hf.durable(name="tale")(change(scribe))
    async with stage.open(written, version="1") as runtime:
        run = await runtime.start(written)
        await soon(hurdle.reached.wait())
    scribe.performed.clear()
    async with stage.open(new, version="2") as runtime:
        run = await runtime.get(run.id, of=written)
        with pytest.raises(hf.RunError, match="diverged") as stuck:
            await run.result(timeout=20)
        assert recorded in str(stuck.value)
        assert asked in str(stuck.value)
        assert scribe.performed == []
        last = (await entries_of(run))[-1]
        assert isinstance(last, events.RunParked)
        assert (last.reason, last.code, (await run.info()).status) == ("diverged", "2", hf.Status.WAITING)
        assert (await kinds_of(run)).count("StepCompleted") == 2
    hurdle.open.set()
    async with stage.open(written, version="1") as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "STOP"


async def test_a_version_that_diverged_is_not_tried_again(stage: Stage, scribe: Scribe) -> None:
    """The refusing version is in the row: it does not meet the run again, however often it is started."""
    hurdle = scribe.stop_at("stop")
    written, new = hf.durable(name="tale")(original(scribe)), hf.durable(name="tale")(renamed(scribe))
    async with stage.open(written, version="1") as runtime:
        run = await runtime.start(written)
        await soon(hurdle.reached.wait())
    for _ in range(3):
        async with stage.open(new, version="2") as runtime:
            with pytest.raises(hf.RunError, match="diverged"):
                await (await runtime.get(run.id)).result(timeout=20)
    async with stage.open(work=False) as runtime:
        kinds = await kinds_of(await runtime.get(run.id))
    assert kinds.count("RunParked") == 1
    assert kinds.count("RunResumed") == 1


async def test_code_may_grow_past_the_last_record(stage: Stage, scribe: Scribe) -> None:
    """New steps after the recorded ones are fresh; that is how every run goes on."""
    hurdle = scribe.stop_at("stop")
    written = hf.durable(name="tale")(original(scribe))
    async with stage.open(written, version="1") as runtime:
        run = await runtime.start(written)
        await soon(hurdle.reached.wait())
    scribe.performed.clear()

    async def longer(ctx: hf.Context) -> str:
        await ctx.step(scribe.note, "a")
        await ctx.step(scribe.note, "b")
        await ctx.step(scribe.draw, "c")
        return await ctx.step(scribe.draw, "d")

    new = hf.durable(name="tale")(longer)
    async with stage.open(new, version="2") as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "D"
    assert scribe.performed == ["drawn c", "drawn d"]


@pytest.mark.parametrize("parameters", ["fewer", "another type"])
async def test_an_input_that_no_longer_fits_is_refused(stage: Stage, scribe: Scribe, parameters: str) -> None:
    """A changed signature stops the run before its code starts."""
    hurdle = scribe.stop_at("stop")
    written = hf.durable(name="tale")(original(scribe))

    async def fewer(ctx: hf.Context) -> str:
        return await ctx.step(scribe.draw, "never")

    async def another_type(ctx: hf.Context, word: int) -> str:
        return await ctx.step(scribe.draw, "never")

    new: Any = hf.durable(name="tale")(fewer) if parameters == "fewer" else hf.durable(name="tale")(another_type)
    async with stage.open(written, version="1") as runtime:
        run = await runtime.start(written, "given")
        await soon(hurdle.reached.wait())
    async with stage.open(new, version="2") as runtime:
        with pytest.raises(hf.RunError, match="another input"):
            await (await runtime.get(run.id)).result(timeout=20)
    assert "drawn never" not in scribe.performed


async def test_a_diverged_run_touches_no_other(stage: Stage, scribe: Scribe) -> None:
    """The others of the same name and process go on."""
    hurdle = scribe.stop_at("stop")
    written, new = hf.durable(name="tale")(original(scribe)), hf.durable(name="tale")(renamed(scribe))
    async with stage.open(written, version="1") as runtime:
        await runtime.start(written)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(new, version="2") as runtime:
        results = await soon(asyncio.gather(*(runtime.run(new) for _ in range(3))))
    assert results == ["STOP"] * 3
