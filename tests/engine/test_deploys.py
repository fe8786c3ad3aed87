"""Runs that rest while their code changes: what a preflight says of each is what becomes of it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.engine.preflight import Preflight, Verdict
from tests.engine.deploys import CHANGES, GO, RESTS, Change, lull, performed
from tests.engine.stage import Stage, entries_of, seen

SECONDS = 120.0
Resting = dict[str, tuple[Change, hf.Run[Any]]]


@pytest.fixture(autouse=True)
def nothing_performed() -> Iterator[None]:
    """Begin with a world in which nothing was done."""
    performed.clear()
    yield
    performed.clear()


def ways(number: int) -> list[str]:
    """Return two of the ways to rest, so that every way comes about equally often."""
    return [RESTS[(2 * number) % len(RESTS)], RESTS[(2 * number + 1) % len(RESTS)]]


async def bring_to_rest(stage: Stage) -> Resting:
    """Let the old code bring two runs of every kind to where they wait."""
    resting: Resting = {}
    async with stage.open(lull, *(change.old for change in CHANGES), version="1") as runtime:
        for number, change in enumerate(CHANGES):
            for how in ways(number):
                key = f"{change.name}/{how}"
                resting[key] = change, await runtime.start(change.old, key, how, key=key, pin=change.pin)
        for _, run in resting.values():
            await seen(run, lambda entry: isinstance(entry, events.RunParked))
    return {key: (change, run) for key, (change, run) in resting.items()}


async def wake(stage: Stage, resting: Resting) -> None:
    """Send everybody what they wait for, while no worker is there."""
    async with stage.open(work=False) as runtime:
        for question in await runtime.questions():
            await runtime.answer(question, True)
        for row in await runtime.runs(name="lull", limit=1000):
            await (await runtime.get(row.id)).signal(GO, "go")
        for key in resting:
            await (await runtime.get(key=key)).signal(GO, "go")
    stage.clock.advance(3601)


async def judged(stage: Stage, *parts: Any, version: str) -> dict[str, Preflight]:
    """Return what a preflight says of every run but the children."""
    async with stage.open(*parts, version=version, work=False) as runtime:
        return {found.key: found async for found in runtime.preflight() if found.key is not None}


async def outcome(run: hf.Run[Any]) -> tuple[str, str]:
    """Return how a run ended, or why it rests where only other code can help."""
    try:
        return "completed", str(await run.result(timeout=SECONDS))
    except hf.RunError as error:
        return str(error.status), error.reason


async def test_what_a_preflight_says_of_fifty_resting_runs_is_what_becomes_of_them(every: Stage) -> None:
    """Harmful changes are refused before anything is done, benign ones finish, and the old code finishes the rest."""
    resting = await bring_to_rest(every)
    assert len(resting) >= 50
    old, new = [change.old for change in CHANGES], [change.new for change in CHANGES]
    before = list(performed)
    said = await judged(every, lull, *new, version="2")
    assert performed == before
    assert all(found.next for found in said.values() if found.verdict is Verdict.GOES_ON)
    assert {key: found.verdict for key, found in said.items()} == {
        key: change.verdict for key, (change, _) in resting.items()
    }
    await wake(every, resting)
    performed.clear()
    async with every.open(lull, *new, version="2") as runtime:
        served = [key for key, (change, _) in resting.items() if change.verdict is not Verdict.UNSERVED]
        came = dict(
            zip(served, await asyncio.gather(*[outcome(await runtime.get(key=key)) for key in served]), strict=True)
        )
        lacking = {
            key: (await (await runtime.get(key=key)).info()).reason
            for key, (change, _) in resting.items()
            if change.verdict is Verdict.UNSERVED
        }
    done = set(performed)
    for key, (status, reason) in came.items():
        found, acts = said[key], {act for who, act in done if who == key}
        match found.verdict:
            case Verdict.GOES_ON:
                assert (status, reason) == ("completed", "done"), (key, reason)
                assert "last" in acts
            case Verdict.REFUSED:
                assert (status, reason) == ("waiting", f"diverged: {found.detail}"), key
                assert not acts, (key, acts)
            case _:
                assert status == "waiting"
                assert "was started with version 1 and is pinned to it" in reason
                assert not acts
    assert set(lacking.values()) == {"code: no worker serves 'function renamed'"}
    again = await judged(every, lull, *old, version="1")
    assert {found.verdict for found in again.values()} == {Verdict.GOES_ON}
    async with every.open(lull, *old, version="1") as runtime:
        assert {await outcome(await runtime.get(key=key)) for key in again} == {("completed", "done")}
    assert len([act for act in performed if act[1] == "last"]) == len(resting)


async def test_what_took_a_run_over_is_recorded_before_it_acts(every: Stage) -> None:
    """The entry names both versions and what differs, and comes before the first thing that the new code does."""
    chosen = [change for change in CHANGES if change.name in ("white space", "function renamed with alias")]
    async with every.open(lull, *(change.old for change in chosen), version="1") as runtime:
        runs = [await runtime.start(change.old, change.name, "signal", key=change.name) for change in chosen]
        for run in runs:
            await seen(run, lambda entry: isinstance(entry, events.RunParked))
    async with every.open(work=False) as runtime:
        for change in chosen:
            run = await runtime.get(key=change.name)
            assert not [entry for entry in await entries_of(run) if isinstance(entry, events.SpecAdopted)]
            await run.signal(GO, "go")
    async with every.open(lull, *(change.new for change in chosen), version="2") as runtime:
        for change in chosen:
            run = await runtime.get(key=change.name)
            assert await run.result(timeout=SECONDS) == "done"
            entries = await entries_of(run)
            (adopted,) = [entry for entry in entries if isinstance(entry, events.SpecAdopted)]
            assert (adopted.before, adopted.code) == ("1", "2")
            acts = [entry.seq for entry in entries if isinstance(entry, events.SignalReceived | events.StepCompleted)]
            resumed = max(entry.seq for entry in entries if isinstance(entry, events.RunResumed))
            assert resumed < adopted.seq < min(seq for seq in acts if seq > resumed)
            assert ("is 'called otherwise' now" in adopted.difference) == (change.name != "white space")
