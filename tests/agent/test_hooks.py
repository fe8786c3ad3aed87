"""The hooks of a turn stay in their place: behind what they ended, and never before what is tried again."""

import contextlib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

import holdfast as hf
from holdfast.agent.model import ModelRefused
from holdfast.core import entry as e
from holdfast.server import Hooks, Outcome
from holdfast.testing import ScriptedModel, call
from tests.agent.lines import LIMIT_SECONDS, entries_of, steer


class Told:
    """What hooks were told, in order."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def end(self, outcome: Outcome) -> None:
        """Note how a turn came out."""
        self.all.append(str(outcome.result or outcome.error))

    def flush(self) -> None:
        """Note the end."""
        self.all.append("flush")

    @property
    def hooks(self) -> Hooks:
        """The hooks."""
        return Hooks(on_complete=self.end, flush=self.flush)


@hf.tool(effect="repeat")
def look(order: str) -> str:
    """Look an order up."""
    return f"{order} is broken"


async def _fails(run: hf.Run[Any], why: str) -> None:
    with pytest.raises(hf.RunError, match=why):
        await run.result(timeout=LIMIT_SECONDS)


async def test_a_turn_whose_model_failed_is_tried_again_though_its_hooks_were_told(tmp_path: Path) -> None:
    """The model is asked again, and the hooks are told of the success then."""
    told, store = Told(), f"sqlite:///{tmp_path / 'store.db'}"
    clerk = hf.Agent("clerk", model=ScriptedModel(ModelRefused("no such key")), hooks=told.hooks)
    async with hf.testing.open(hf.App(clerk), store=store) as runtime:
        run = await runtime.start(clerk, "hello")
        await _fails(run, "no such key")
    clerk = hf.Agent("clerk", model=ScriptedModel("mended"), hooks=told.hooks)
    async with hf.testing.open(hf.App(clerk), store=store) as runtime:
        again = await (await runtime.get(run.id, of=clerk)).retry()
        assert await again.result(timeout=LIMIT_SECONDS) == "mended"
        steps = [entry.step for entry in await entries_of(again) if isinstance(entry, e.StepCompleted)]
    assert steps == ["0/hook%20on_complete#1", "0/hook%20flush#1"]
    assert told.all[1:] == ["flush", "mended", "flush"]
    assert "no such key" in told.all[0]


async def test_a_turn_that_reached_its_limit_goes_on_with_a_higher_one_only_when_it_is_tried_again(
    tmp_path: Path,
) -> None:
    """What the hooks were told is not in the way of a retry; without one the turn fails as they were told."""
    told, store = Told(), f"sqlite:///{tmp_path / 'store.db'}"

    def clerk(limit: int) -> hf.Agent[str]:
        model = ScriptedModel(call("look", order="42"), "done")
        return hf.Agent("clerk", model=model, tools=[look], turn_limit=limit, hooks=told.hooks)

    async with hf.testing.open(hf.App(agent := clerk(1)), store=store) as runtime:
        run = await runtime.start(agent, "hello")
        await _fails(run, "TurnLimit: clerk asked its model 1 time")
        [hooked, _] = [entry.seq for entry in await entries_of(run) if isinstance(entry, e.StepCompleted)]
    async with hf.testing.open(hf.App(agent := clerk(5)), store=store) as runtime:
        failed = await runtime.get(run.id, of=agent)
        await _fails(await failed.fork(at=hooked), "TurnLimit: clerk asked its model 1 time")
        assert await (await failed.retry()).result(timeout=LIMIT_SECONDS) == "done"
    assert told.all[-2:] == ["done", "flush"]


async def test_a_hook_that_failed_the_turn_is_what_is_tried_again() -> None:
    """With `on_error="fail"` the answer stands and the hook is called once more, not the model."""
    broken = [True]

    def keep(outcome: Outcome) -> None:
        if broken.pop():
            broken.append(False)
            raise OSError("the disk is full")

    model = ScriptedModel("done")
    clerk = hf.Agent("clerk", model=model, hooks=Hooks(persist=keep, flush=Told().flush, on_error="fail"))
    async with hf.testing.open(hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "hello")
        await _fails(run, "the disk is full")
        assert await (await run.retry()).result(timeout=LIMIT_SECONDS) == "done"
    assert len(model.requests) == 1


class Order(msgspec.Struct):
    """An order."""

    number: int


async def _forked_behind(tmp_path: Path, hooks: Hooks, nth: int, *, to: Any, **options: Any) -> tuple[Any, list[str]]:
    """Return the result and the hooks of a turn that was broken off behind its nth hook and went on as another type."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    reader: hf.Agent[Any] = hf.Agent("reader", model=ScriptedModel("forty-two"), hooks=hooks, **options)
    async with hf.testing.open(hf.App(reader), store=store) as runtime:
        run = await runtime.start(reader, "read")
        with contextlib.suppress(hf.RunError):
            await run.result(timeout=LIMIT_SECONDS)
        hooked = [entry.seq for entry in await entries_of(run) if isinstance(entry, e.StepCompleted)]
    reader = hf.Agent("reader", model=ScriptedModel("forty-two"), hooks=hooks, output=to)
    async with hf.testing.open(hf.App(reader), store=store) as runtime:
        fork = await (await runtime.get(run.id)).fork(at=hooked[nth])
        try:
            value = await fork.result(timeout=LIMIT_SECONDS)
        except hf.RunError as error:
            value = error
        return value, [entry.step for entry in await entries_of(fork) if isinstance(entry, e.StepCompleted)]


async def test_an_answer_whose_hooks_were_called_is_not_asked_for_again_as_another_type(tmp_path: Path) -> None:
    """The turn fails with what is wrong, behind what is recorded, instead of leaving its journal."""
    told = Told()
    value, steps = await _forked_behind(tmp_path, told.hooks, 0, to=Order)
    assert "OutputInvalid" in str(value)
    assert [unquote(step) for step in steps] == [
        "0/hook on_complete#1", "0/hook failed on_complete#1", "0/hook failed flush#1",
    ]  # fmt: skip


async def test_what_a_hook_made_of_an_answer_stays_the_result_whatever_type_is_asked_for_now(tmp_path: Path) -> None:
    """It was transformed once: the rest of the hooks are told that, and the turn ends with it."""
    told = Told()
    hooks = Hooks(transform=str.upper, on_complete=told.end)
    value, steps = await _forked_behind(tmp_path, hooks, 0, to=Order)
    assert value == "FORTY-TWO"
    assert told.all == ["FORTY-TWO", "FORTY-TWO"]
    assert [unquote(step) for step in steps] == ["0/hook transform#1", "0/hook on_complete#1"]


async def test_an_answer_that_was_refused_for_good_stays_refused_when_any_text_would_do_now(tmp_path: Path) -> None:
    """The hooks were told of the failure: it is one."""
    value, steps = await _forked_behind(tmp_path, Told().hooks, 0, to=str, output=Order, output_limit=0)
    assert "OutputInvalid" in str(value)
    assert [unquote(step) for step in steps] == ["0/hook failed on_complete#1", "0/hook failed flush#1"]


async def test_a_turn_that_went_on_behind_its_hooks_goes_on_though_its_first_answer_has_no_form_now(
    tmp_path: Path,
) -> None:
    """It was told something while its hooks were called: that answer is not the one that counts."""
    store, words = f"sqlite:///{tmp_path / 'store.db'}", ["number it"]

    async def tell(outcome: Outcome) -> None:
        if words:
            await steer(runtime._timed, outcome.run, words.pop())

    def reader(last: str, kind: Any) -> hf.Agent[Any]:
        return hf.Agent("reader", model=ScriptedModel("forty-two", last), output=kind, hooks=Hooks(on_complete=tell))

    async with hf.testing.open(hf.App(agent := reader("so be it", str)), store=store) as runtime:
        run = await runtime.start(agent, "read")
        assert await run.result(timeout=LIMIT_SECONDS) == "so be it"
        [told] = [entry.seq for entry in await entries_of(run) if isinstance(entry, e.MessageAdded) and entry.by]
    async with hf.testing.open(hf.App(agent := reader('{"number": 42}', Order)), store=store) as runtime:
        fork = await (await runtime.get(run.id, of=agent)).fork(at=told)
        assert await fork.result(timeout=LIMIT_SECONDS) == Order(42)
