"""A turn that was broken off goes on: with what is recorded, whatever has become of the agent meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import holdfast as hf
from holdfast.core import entry as e
from holdfast.core.message import Message
from holdfast.core.transcript import transcript
from holdfast.testing import ScriptedModel, call, every_crash
from tests.agent.lines import LIMIT_SECONDS, asked, entries_of, results_of, told


@hf.tool(effect="repeat")
async def look(order: str) -> str:
    """Look an order up."""
    return f"order {order}: broken"


@hf.tool(effect="keyed")
async def note(step: hf.Step[Any], text: str) -> str:
    """Note something."""
    return f"noted {text}"


@hf.tool
async def refund(order: str) -> str:
    """Pay money back."""
    return f"paid for {order}"


@hf.tool(needs_approval=True, effect="repeat")
async def close(order: str) -> str:
    """Close an order."""
    return f"closed {order}"


SCRIPT = (
    [call("look", order="42"), call("note", text="broken"), call("look", order="43")],
    call("close", order="42"),
    "all done",
)
CLERK = hf.Agent("clerk", model=ScriptedModel(*SCRIPT), instructions="Be kind.", tools=[look, note, close, refund])
PAYER = hf.Agent("payer", model=ScriptedModel([call("refund", order="42"), call("look", order="42")], told), tools=[
    refund, look,
])  # fmt: skip


def plain(messages: list[Message]) -> Any:
    """Return messages as data."""
    return msgspec.to_builtins(messages)


async def test_whichever_write_a_worker_dies_around_the_transcript_is_that_of_an_unbroken_turn() -> None:
    """Parallel tools and an approval: after each crash the same was said, and no recorded step is performed again."""
    seen: list[Any] = []

    def same(ended: hf.testing.Ended) -> bool:
        seen.append(plain(transcript(ended.entries)))
        return bool(seen[-1] == seen[0]) and ended.result == "all done"

    survived = await every_crash(CLERK, "it broke", answers=True, check=same)
    assert survived.crashes > 10


async def test_a_once_tool_whose_worker_died_is_told_as_unknown_and_is_never_called_twice() -> None:
    """Of a payment that nobody knows the outcome of, the model is told just that; the rest is as it was."""
    unknown: list[str] = []

    def told_so(ended: hf.testing.Ended) -> bool:
        paid, looked = results_of(transcript(ended.entries))[:2]
        if ended.doubted:
            unknown.append(paid.text)
            return paid.error and "outcome is unknown (the process died" in paid.text and looked.text.endswith("broken")
        return ended.result == "paid for 42 | order 42: broken"

    await every_crash(PAYER, "it broke", allow_doubt=True, check=told_so)
    assert unknown


async def test_a_turn_whose_process_is_killed_goes_on_from_the_file(tmp_path: Path) -> None:
    """On SQLite what one process recorded another goes on from: the model is sent the very same bytes before."""
    first = ScriptedModel(*SCRIPT)
    last = ScriptedModel(*SCRIPT)
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with hf.testing.open(hf.App(agent := _clerk(first)), store=store) as runtime:
        run = await runtime.start(agent, "it broke")
        await asked(run)
        run_id = run.id
    async with hf.testing.open(hf.App(agent := _clerk(last)), store=store) as runtime:
        [question] = await runtime.questions()
        await runtime.answer(question, True)
        again = await runtime.get(run_id, of=agent)
        assert await again.result(timeout=LIMIT_SECONDS) == "all done"
    sent, resent = first.requests[-1], last.requests[-1]
    assert len(first.requests) == 2
    assert len(last.requests) == 1
    before, after = (msgspec.json.encode(one.messages) for one in (sent, resent))
    assert after.startswith(before[:-1])
    assert (sent.instructions, sent.tools, sent.settings) == (resent.instructions, resent.tools, resent.settings)


def _clerk(model: ScriptedModel, **other: Any) -> hf.Agent[str]:
    options: dict[str, Any] = {"instructions": "Be kind.", "tools": [look, note, close]}
    return hf.Agent("clerk", model=model, **(options | other))


async def _taken_over(tmp_path: Path, change: Callable[[ScriptedModel], hf.Agent[Any]]) -> tuple[Any, list[e.Entry]]:
    """Return the answer of a turn that another version of the agent took over while it waited, and its journal."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with hf.testing.open(hf.App(agent := _clerk(ScriptedModel(*SCRIPT))), store=store) as runtime:
        run = await runtime.start(agent, "it broke")
        await asked(run)
    changed = change(ScriptedModel(*SCRIPT[:-1], lambda request: f"{request.instructions} {told(request)}"))
    async with hf.testing.open(hf.App(changed), store=store) as runtime:
        [question] = await runtime.questions()
        await runtime.answer(question, True)
        again = await runtime.get(run.id, of=changed)
        return await again.result(timeout=LIMIT_SECONDS), await entries_of(again)


async def test_other_instructions_and_tools_take_a_turn_over_without_diverging(tmp_path: Path) -> None:
    """What was said is said; what the model is told from now on is what the agent is now."""

    @hf.tool(effect="repeat")
    def close(order: str, reason: str = "none") -> str:
        """Close an order, with a reason; nobody is asked any more."""
        return f"closed {order} for {reason}"

    answer, entries = await _taken_over(tmp_path, lambda model: _clerk(model, instructions="Be quick.", tools=[close]))
    assert answer == "Be quick. closed 42 for none"
    assert any(isinstance(entry, e.SpecAdopted) for entry in entries)


async def test_a_tool_that_is_gone_is_told_as_gone_and_the_turn_goes_on(tmp_path: Path) -> None:
    """A call that a person agreed to cannot be made without the tool; the run does not diverge for that."""
    answer, _ = await _taken_over(tmp_path, lambda model: _clerk(model, tools=[look]))
    assert "There is no tool called 'close'" in answer


async def test_instructions_of_a_function_are_those_that_the_run_was_begun_with(tmp_path: Path) -> None:
    """What a function said first is told in every generation, in any process, so that prefixes stay the same."""
    asked_for: list[int] = []

    def instructions() -> str:
        asked_for.append(1)
        return f"version {len(asked_for)}"

    models = [ScriptedModel(*SCRIPT), ScriptedModel(*SCRIPT)]
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with hf.testing.open(hf.App(agent := _clerk(models[0], instructions=instructions)), store=store) as runtime:
        run = await runtime.start(agent, "it broke")
        await asked(run)
    async with hf.testing.open(hf.App(agent := _clerk(models[1], instructions=instructions)), store=store) as runtime:
        [question] = await runtime.questions()
        await runtime.answer(question, True)
        await (await runtime.get(run.id, of=agent)).result(timeout=LIMIT_SECONDS)
    assert [request.instructions for model in models for request in model.requests] == ["version 1"] * 3
