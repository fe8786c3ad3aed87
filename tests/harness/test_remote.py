"""A run of another server as a turn here: started once by its key, followed, and ended as it ends."""

import asyncio
from collections.abc import Iterator
from importlib import reload
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import entry as e
from holdfast.harness import Ask, Known, Remote, Start
from holdfast.models import Message, Text
from holdfast.testing import ScriptedModel, call, every_crash
from holdfast.testing.harness import Bench, HarnessContract
from tests.agent.lines import LIMIT_SECONDS, entries_of
from tests.harness import remote_program
from tests.harness.remote_bench import RemoteBench
from tests.server.serving import TOKEN, Served

go = hf.Signal("go", str)


@hf.tool(needs_approval=True, effect="repeat")
async def close(order: str) -> str:
    """Close an order."""
    return f"closed {order}"


def heard(request: Any) -> str:
    """Say what was said before, and now."""
    return " / ".join(message.text for message in request.messages)


helper = hf.Agent("helper", model=ScriptedModel(*([heard] * 9)))
closer = hf.Agent("closer", model=ScriptedModel(call("close", order="42"), "it is closed"), tools=[close])


@hf.durable
async def fails(ctx: hf.Context, message: str) -> str:
    """Fail with the message."""
    raise ValueError(message)


@hf.durable
async def sleeps(ctx: hf.Context, message: str) -> str:
    """Wait for something that never comes."""
    await ctx.sleep(3600)
    return message


@hf.durable
async def waits(ctx: hf.Context, message: str) -> str:
    """Wait for a word."""
    return await ctx.receive(go)


there = hf.App(helper, closer, fails, sleeps, waits)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The other server."""
    with Served(tmp_path_factory.mktemp("there") / "runs.db", there) as served:
        yield served


def agent(served: Served, name: str, **options: Any) -> hf.Agent[str]:
    """Return an agent here whose turns are taken there."""
    return hf.Agent("here", harness=Remote(served.url, name, token=TOKEN, rest_seconds=0.05, **options))


async def test_a_conversation_here_is_one_there_and_each_turn_is_one_run(served: Served) -> None:
    """What was said there before is known there, so that only what is new is told."""
    here = agent(served, "helper")
    async with hf.testing.open(hf.App(here)) as runtime:
        for word, said in (("one", "one"), ("two", "one / one / two")):
            run = await runtime.start(here, word, conversation="chat")
            assert await run.result(timeout=LIMIT_SECONDS) == said
    [first, second] = served.wait(served.runtime.runs(name="helper"))
    assert first.conversation == second.conversation is not None


async def test_the_failure_there_is_the_failure_here(served: Served) -> None:
    """Nobody waits for a run that has ended, and its reason is told."""
    here = agent(served, "fails", conversation=False)
    async with hf.testing.open(hf.App(here)) as runtime:
        run = await runtime.start(here, "it had to")
        with pytest.raises(hf.RunError, match="failed: ValueError: it had to"):
            await run.result(timeout=LIMIT_SECONDS)


async def test_a_run_that_waits_for_a_person_there_rests_here_and_says_so(served: Served) -> None:
    """What waits for an approval elsewhere is shown, and goes on once it is given there."""
    here = agent(served, "closer")
    async with hf.testing.open(hf.App(here), jumps=True) as runtime:
        run = await runtime.start(here, "close it")
        parked = await _parked(run, "is waiting there: ask")
        assert parked.reason == "harness"
        assert "remote:closer" in parked.detail
        [question] = served.wait(served.runtime.questions())
        served.wait(served.runtime.answer(question, True))
        assert await run.result(timeout=LIMIT_SECONDS) == "it is closed"


async def test_a_run_that_is_paused_there_rests_here_until_it_goes_on(served: Served) -> None:
    """Nobody waits for it in silence, and nobody has to say so twice."""
    here = agent(served, "waits", conversation=False)
    async with hf.testing.open(hf.App(here)) as runtime:
        run = await runtime.start(here, "x")
        await _begun(run)
        there = next(iter(served.wait(served.runtime.runs(name="waits"))))
        at_work = served.wait(served.runtime.get(there.id))
        served.wait(at_work.pause("not now"))
        assert (await _parked(run, "is paused there")).reason == "harness"
        served.wait(at_work.resume())
        served.wait(at_work.signal(go, "at last"))
        assert await run.result(timeout=LIMIT_SECONDS) == "at last"


async def test_what_has_ended_is_told_by_its_server_when_no_event_is_left(remote_bench: RemoteBench) -> None:
    """Behind the last event there is nothing to follow; where the run stands is asked for instead."""
    remote_bench.clear("one two")
    session = await remote_bench.harness().open(Start())
    ask = Ask(messages=(Message("user", (Text("hello"),)),), key="a key")
    events = [event async for event in session.create(ask)]
    [known] = [event for event in events if isinstance(event, Known)]
    again = [event async for event in session.attach(ask, known.handle, events[-1].id)]
    assert again == events[-1:]
    await session.close()


async def test_cancelling_here_cancels_there(served: Served) -> None:
    """The end that somebody asks for goes down."""
    here = agent(served, "sleeps", conversation=False)
    async with hf.testing.open(hf.App(here)) as runtime:
        run = await runtime.start(here, "x")
        await _begun(run)
        await run.cancel("enough")
        with pytest.raises(hf.RunError, match="enough"):
            await run.result(timeout=LIMIT_SECONDS)
        entries = await entries_of(run)
    there = next(iter(served.wait(served.runtime.runs(name="sleeps"))))
    served.wait(_ended(served, there.id))
    assert any(isinstance(entry, e.StepFailed) and entry.cancelled for entry in entries)


async def _begun(run: hf.Run[Any]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        async for event in run.events():
            if isinstance(event, e.CursorMoved) and event.step is not None:
                return


async def _parked(run: hf.Run[Any], why: str) -> e.RunParked:
    async with asyncio.timeout(LIMIT_SECONDS):
        async for event in run.events():
            if isinstance(event, e.RunParked) and why in event.detail:
                return event
    raise AssertionError(f"it did not rest because it {why}")


async def _ended(served: Served, run: str) -> None:
    with pytest.raises(hf.RunError, match="the run that waits was cancelled"):
        await (await served.runtime.get(run)).result(timeout=LIMIT_SECONDS)


async def test_a_process_that_is_killed_anywhere_starts_one_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real deaths around every write: the key is the same each time, and so is the run that answers."""
    killed = hf.Agent("killed", model=ScriptedModel("it is done"))
    with Served(tmp_path / "runs.db", hf.App(killed), token=remote_program.TOKEN) as other:
        monkeypatch.setenv(remote_program.ADDRESS, other.url)
        program = reload(remote_program)
        survived = await every_crash(program.here, "do it", processes=True)
        assert survived.unbroken.result == "it is done"
        assert survived.crashes > 10
        assert len(other.wait(other.runtime.runs(name="killed"))) == 1


@pytest.fixture(scope="module")
def remote_bench() -> Iterator[RemoteBench]:
    """A real server on loopback."""
    bench = RemoteBench()
    yield bench
    bench.close()


class TestRemote(HarnessContract):
    """A run of another server keeps the contract of every harness."""

    @pytest.fixture
    def bench(self, remote_bench: RemoteBench) -> Bench:
        """The same server for every check."""
        return remote_bench
