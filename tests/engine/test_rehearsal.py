"""Rehearsals: today's code over what a run recorded, as far as that goes, and nothing happens."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import holdfast as hf
from holdfast import testing
from holdfast.core import entry as e
from holdfast.core.checksum import StoredEntry
from holdfast.core.cursor import START
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged
from holdfast.core.ids import RunId
from holdfast.engine.function import Durable
from holdfast.engine.rehearsal import Finished, Rehearsed, Stopped, rehearse
from holdfast.store.memory import MemoryStore
from holdfast.testing import MovingClock
from tests.engine.stage import soon
from tests.kit import programs
from tests.kit.programs import world


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Begin with an untouched world."""
    programs.forget()
    yield
    programs.forget()


class Recording:
    """What a run left."""

    def __init__(self, run: RunId, entries: Sequence[StoredEntry], blobs: dict[str, bytes]) -> None:
        self.run, self.entries, self.blobs = run, entries, blobs

    def up_to(self, seq: int) -> "Recording":
        """Return what it had left by then."""
        return Recording(self.run, self.entries[:seq], self.blobs)

    def by(self, function: Any) -> Rehearsed:
        """Rehearse it with some code."""
        return rehearse(function, self.run, self.entries, blobs=self.blobs)


async def recorded(function: Durable[Any, ...], *args: Any, app: hf.App | None = None) -> Recording:
    """Play a run to its end and return what it left; the world is put back."""
    store = MemoryStore(clock=MovingClock())
    async with testing.open(app, store=store) as runtime:
        run = await runtime.start(function, *args)
        async with asyncio.timeout(20):
            async for _ in run.events():
                pass
        page = await store.read(run.id, START)
        blobs = {digest: await store.blob(tenant, digest) for tenant, digest in list(store._blobs.bodies)}
    programs.forget()
    return Recording(run.id, page.entries, blobs)


async def test_code_is_followed_to_the_end_of_what_is_recorded_and_nothing_is_performed() -> None:
    """Wherever a run was left, its code asks for the step that came next, and the world does not hear of it."""
    whole = await recorded(programs.onboard, "acme", app=programs.app)
    order = ["load", "charge", "book", "count_customers", "flaky", "emit"]
    keys = [f"0/{name}#1" for name in order]
    for seq in range(1, len(whole.entries)):
        closed = [
            entry.step
            for entry in (read_entry("r", stored) for stored in whole.entries[:seq])
            if isinstance(entry, e.StepCompleted | e.Emitted)
        ]
        outcome = whole.up_to(seq).by(programs.onboard)
        if len(closed) < len(keys):
            assert outcome == Stopped(keys[len(closed)])
        else:
            assert isinstance(outcome, Finished)
    assert isinstance(whole.by(programs.onboard), Finished)
    assert not world


def changed(body: Any) -> Any:
    """Return a function of another body under the name of the simple one."""
    return hf.durable(name="simple")(body)


async def test_another_step_than_the_recorded_one_is_a_divergence() -> None:
    """Recorded against asked, as the worker would say it, before any worker has to."""

    @changed
    async def other(ctx: hf.Context, customer: str) -> str:
        return await ctx.step(programs.echo, customer)

    outcome = (await recorded(programs.simple, "acme")).up_to(2).by(other)
    assert isinstance(outcome, hf.Diverged)
    assert (outcome.seq, outcome.recorded, outcome.asked) == (2, "'0/load#1'", "'0/echo#1'")


async def test_another_input_of_a_step_is_a_divergence() -> None:
    """The same step with other arguments is another step."""

    @changed
    async def other(ctx: hf.Context, customer: str) -> str:
        return await ctx.step(programs.load, customer + "!")

    outcome = (await recorded(programs.simple, "acme")).up_to(2).by(other)
    assert isinstance(outcome, hf.Diverged)
    assert "another input" in outcome.asked


async def test_a_parameter_that_the_recorded_input_does_not_fit_is_a_divergence() -> None:
    """Runs that are under way bring the arguments they were started with."""

    @changed
    async def other(ctx: hf.Context, customer: int) -> str:
        return await ctx.step(programs.load, str(customer))

    outcome = (await recorded(programs.simple, "acme")).up_to(1).by(other)
    assert isinstance(outcome, hf.Diverged)
    assert outcome.recorded == "another input"


@pytest.mark.parametrize("raises", [False, True])
async def test_code_that_ends_before_all_that_is_recorded_diverges(raises: bool) -> None:
    """A step that is no longer asked for is missed, whether the code returns or raises before it."""

    @changed
    async def other(ctx: hf.Context, customer: str) -> str:
        first = await ctx.step(programs.load, customer)
        if raises:
            raise LookupError("no way")
        return first

    outcome = (await recorded(programs.simple, "acme")).up_to(3).by(other)
    assert isinstance(outcome, hf.Diverged)
    assert (outcome.seq, outcome.recorded) == (3, "'0/load#2'")
    assert outcome.asked.startswith("the end of the run")
    assert ("LookupError: no way" in outcome.asked) == raises


async def test_a_run_that_has_ended_must_end_alike() -> None:
    """Another result, and a step too many, are told against the recorded ending."""

    @changed
    async def louder(ctx: hf.Context, customer: str) -> str:
        return (await ctx.step(programs.load, await ctx.step(programs.load, customer))).upper()

    @changed
    async def longer(ctx: hf.Context, customer: str) -> str:
        first = await ctx.step(programs.load, await ctx.step(programs.load, customer))
        return await ctx.step(programs.load, first)

    whole = await recorded(programs.simple, "acme")
    outcome = whole.by(louder)
    assert isinstance(outcome, hf.Diverged)
    assert (outcome.recorded, outcome.asked) == ('the end of the run, completed with "Acme"', 'completed with "ACME"')
    outcome = whole.by(longer)
    assert isinstance(outcome, hf.Diverged)
    assert (outcome.seq, outcome.recorded, outcome.asked) == (4, "the end of the run", "'0/load#3'")


async def test_code_that_swallows_everything_cannot_hide_where_it_stopped() -> None:
    """The end of what is recorded is not an error that code could handle."""

    @changed
    async def greedy(ctx: hf.Context, customer: str) -> str:
        try:
            return await ctx.step(programs.load, customer)
        except BaseException:
            return await ctx.step(programs.echo, customer)

    assert (await recorded(programs.simple, "acme")).up_to(1).by(greedy) == Stopped("0/load#1")
    assert not world


async def test_a_run_that_failed_is_followed_to_its_failure() -> None:
    """An error that was recorded is raised again, and fails the code again."""
    outcome = (await recorded(programs.failing, "acme")).by(programs.failing)
    assert isinstance(outcome, Finished)
    assert outcome.ending.status is hf.Status.FAILED


@hf.durable
async def cut_short(ctx: hf.Context) -> str:
    """Wait a little for a step that never answers."""
    try:
        async with asyncio.timeout(0.01):
            await ctx.step(programs.never, key="wait")
    except TimeoutError:
        return await ctx.step(programs.echo, "in time")
    return "never"


@hf.durable(name="cut_short")
async def cut_late(ctx: hf.Context) -> str:
    """Wait much longer for it."""
    try:
        async with asyncio.timeout(3 * 86_400):
            await ctx.step(programs.never, key="wait")
    except TimeoutError:
        return await ctx.step(programs.echo, "in time")
    return "never"


async def test_a_step_that_the_code_cancelled_is_cancelled_again_without_waiting() -> None:
    """The timeout that cut it is reached at once, though it be three days."""
    whole = await recorded(cut_short)
    assert isinstance(await soon(asyncio.to_thread(whole.by, cut_late)), Finished)


LARGE = "large" * 20_000


async def enlarge(customer: str) -> str:
    """Return what does not fit into an entry."""
    return LARGE


@hf.durable
async def large(ctx: hf.Context, customer: str) -> int:
    """Use a large value."""
    return len(await ctx.step(enlarge, customer))


async def test_large_values_come_from_the_blobs_that_are_given() -> None:
    """A result that stands beside its entry is as good as one in it; a missing one is damage."""
    whole = await recorded(large, LARGE)
    assert len(whole.blobs) == 2
    assert isinstance(whole.by(large), Finished)
    with pytest.raises(Damaged, match="blob"):
        Recording(whole.run, whole.entries, {}).by(large)


async def test_entries_that_do_not_add_up_are_damage() -> None:
    """Nothing is concluded from a journal that was altered."""
    whole = await recorded(programs.simple, "acme")
    torn = list(whole.entries)
    torn[1] = torn[1]._replace(body=torn[1].body + b" ")
    with pytest.raises(Damaged):
        Recording(whole.run, torn, {}).by(programs.simple)
    with pytest.raises(Damaged, match="does not begin"):
        Recording(whole.run, whole.entries[1:], {}).by(programs.simple)


async def test_a_rehearsal_leaves_no_thread_behind() -> None:
    """Thousands of runs are looked at before a deploy."""
    whole = await recorded(programs.simple, "acme")
    before = threading.active_count()
    for _ in range(3):
        whole.by(programs.simple)
    assert threading.active_count() == before
