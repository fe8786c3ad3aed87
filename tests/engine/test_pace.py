"""A generation waits for its turn with the provider: no attempt is made for that, and no place is kept from others."""

import itertools
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import events
from holdfast.agent.agent import Agent
from holdfast.agent.lane import RateSeen
from holdfast.agent.pace import PACE
from holdfast.core.status import Status
from holdfast.testing.scripted import ScriptedModel
from tests.chaos.rates import resume_all
from tests.engine.stage import Stage, entries_of, parked, soon
from tests.rigs.provider.metered import Metered

_lanes = itertools.count(1)


def model_of(*lines: str) -> ScriptedModel:
    """Return a model with a lane of its own."""
    return ScriptedModel(*lines, name=f"paced:{next(_lanes)}")


def close_lane(model: ScriptedModel, stage: Stage, seconds: float) -> None:
    """Let a model's provider say that nobody shall come for so long."""
    PACE.before(model.lane, "somebody", clock=stage.clock)
    PACE.after(model.lane, RateSeen(busy=True, retry_after=seconds))


async def test_a_run_that_would_wait_for_long_rests(every: Stage) -> None:
    """It is woken when its turn has come, has made one attempt, and says meanwhile what it waits for."""
    model = model_of("hello")
    clerk = Agent("clerk", model=model)
    async with every.open(clerk) as runtime:
        close_lane(model, every, 30)
        run = await runtime.start(clerk, "hi")
        info = await parked(run, "pace")
        assert info.waiting_for is not None
        assert model.requests == []
        every.clock.advance(32)
        assert await run.result(timeout=20) == "hello"
        (said,) = [entry for entry in await entries_of(run) if isinstance(entry, events.MessageAdded)]
        assert said.attempt == 1


async def test_who_waits_for_a_provider_keeps_no_place_from_others(stage: Stage) -> None:
    """A worker with one place drives another run while the first has not got its turn."""
    model = model_of("hello")
    clerk, quick = Agent("clerk", model=model), Agent("quick", model=model_of("at once"))
    async with stage.open(clerk, quick, concurrency=1) as runtime:
        close_lane(model, stage, 30)
        run = await runtime.start(clerk, "hi")
        assert await (await runtime.start(quick, "hi")).result(timeout=20) == "at once"
        assert (await run.info()).status is not Status.COMPLETED
        stage.clock.advance(32)
        assert await run.result(timeout=20) == "hello"


async def test_waiting_for_a_turn_can_be_cancelled(every: Stage) -> None:
    """The run ends, nothing was sent, and its place is given up."""
    model = model_of("hello")
    clerk = Agent("clerk", model=model)
    async with every.open(clerk) as runtime:
        close_lane(model, every, 30)
        run = await runtime.start(clerk, "hi")
        await parked(run, "pace")
        await run.cancel()
        with pytest.raises(hf.RunError):
            await run.result(timeout=20)
        assert model.requests == []


async def test_a_clock_that_jumps_does_not_wait() -> None:
    """In a runtime for tests the turn comes as soon as there is nothing else to do."""
    model = model_of("hello")
    clerk = Agent("clerk", model=model)
    async with hf.testing.open(hf.App(clerk)) as runtime:
        PACE.before(model.lane, "somebody", clock=runtime.clock)
        PACE.after(model.lane, RateSeen(busy=True, retry_after=55.0))
        begun = runtime.clock()
        assert await soon(runtime.run(clerk, "hi")) == "hello"
        assert runtime.clock() - begun >= 55_000_000


async def test_runs_that_are_resumed_at_once_are_not_refused_once_the_rate_is_known(tmp_path: Path) -> None:
    """Over real HTTP: all end, and only what went before the first answer had come is refused."""
    with Metered(30) as provider:
        told = await resume_all(tmp_path / "store.db", provider, 70, lambda steps: None, concurrency=40)
    assert (told.completed, told.failed) == (70, 0)
    assert all(place < 60 for place in provider.refused), "refused though the rate was known"
