"""A tool that needs a person's word: it is called with what they agreed to, or not at all."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.client.protocol import Question
from holdfast.core import entry as e
from holdfast.testing import ScriptedModel, call
from tests.agent.lines import LIMIT_SECONDS, asked, entries_of, told


class Till:
    """Where money is paid from, and what was paid."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []

    def agent(self, *lines: Any, needs: Any = True, **options: Any) -> hf.Agent[str]:
        """Return an agent that pays when somebody agrees."""

        @hf.tool(needs_approval=needs)
        def refund(order: str, cents: int) -> str:
            """Pay money back."""
            self.paid.append((order, cents))
            return f"paid {cents}"

        lines = lines or (call("refund", order="42", cents=500), told)
        return hf.Agent("clerk", model=ScriptedModel(*lines), tools=[refund], **options)


async def questions_of(runtime: hf.Runtime, run: hf.Run[Any]) -> Sequence[Question]:
    """Wait until a person is asked, and return what they are."""
    await asked(run)
    return await runtime.questions()


async def test_nothing_is_paid_before_somebody_agrees_and_then_what_they_agreed_to() -> None:
    """A person sees the tool and its arguments, and their word lets exactly that happen."""
    till = Till()
    async with hf.testing.open(hf.App(clerk := till.agent())) as runtime:
        run = await runtime.start(clerk, "it broke")
        [question] = await questions_of(runtime, run)
        assert question.text == "Call refund?"
        assert question.show == {"tool": "refund", "arguments": {"order": "42", "cents": 500}}
        assert till.paid == []
        await runtime.answer(question, True, by="ann")
        assert await run.result(timeout=LIMIT_SECONDS) == "paid 500"
    assert till.paid == [("42", 500)]


async def test_an_argument_that_was_changed_is_what_the_tool_is_called_with() -> None:
    """Whoever agrees may change the arguments first."""
    till = Till()
    async with hf.testing.open(hf.App(clerk := till.agent())) as runtime:
        run = await runtime.start(clerk, "it broke")
        [question] = await questions_of(runtime, run)
        await runtime.answer(question, True, args={"cents": 100})
        assert await run.result(timeout=LIMIT_SECONDS) == "paid 100"
        assert any(isinstance(entry, e.StepStarted) for entry in await entries_of(run))
    assert till.paid == [("42", 100)]


async def test_a_change_that_the_tool_does_not_take_is_told_and_nothing_is_paid() -> None:
    """What people change is read as strictly as what the model wrote."""
    till = Till()
    clerk = till.agent(call("refund", order="42", cents=500), told)
    async with hf.testing.open(hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "it broke")
        [question] = await questions_of(runtime, run)
        await runtime.answer(question, True, args={"cents": 1.5})
        assert "its arguments are wrong" in await run.result(timeout=LIMIT_SECONDS)
    assert till.paid == []


async def test_a_refusal_is_told_with_its_note_and_nothing_is_paid() -> None:
    """The model hears that a person said no, and why."""
    till = Till()
    async with hf.testing.open(hf.App(clerk := till.agent())) as runtime:
        run = await runtime.start(clerk, "it broke")
        [question] = await questions_of(runtime, run)
        await runtime.answer(question, False, note="too much")
        answer = await run.result(timeout=LIMIT_SECONDS)
    assert answer == "It was not called: a person refused it. They say: too much"
    assert till.paid == []


async def test_an_agreement_that_does_not_come_in_time_is_none() -> None:
    """Past `approval_expires` the call is refused by nobody, and the run goes on."""
    till = Till()
    clerk = till.agent(approval_expires=timedelta(days=1))
    async with hf.testing.open(hf.App(clerk)) as runtime:
        assert await runtime.run(clerk, "it broke") == "It was not called: nobody agreed to it in time."
    assert till.paid == []


@pytest.mark.parametrize(("cents", "needed"), [(500, 1), (5, 0)])
async def test_a_predicate_says_which_calls_need_a_word(cents: int, needed: int) -> None:
    """Small refunds need nobody; the predicate is given the call's own arguments."""
    till = Till()
    clerk = till.agent(call("refund", order="42", cents=cents), told, needs=lambda order, cents: cents > 100)
    async with hf.testing.open(hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "it broke")
        for question in await questions_of(runtime, run) if needed else ():
            await runtime.answer(question, True)
        assert await run.result(timeout=LIMIT_SECONDS) == f"paid {cents}"
        assert sum(isinstance(entry, e.QuestionAsked) for entry in await entries_of(run)) == needed
