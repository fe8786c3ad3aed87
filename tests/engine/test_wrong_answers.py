"""Answers that decide nothing: a question is decided by True or False, and by nothing that looks like one of them."""

from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import InvalidInput
from tests.engine.stage import Stage, kinds_of, parked


@hf.durable
async def asks(ctx: hf.Context) -> bool:
    """Ask, and return the decision."""
    return bool(await ctx.ask("Refund?", args={"cents": 500}))


@pytest.mark.parametrize("yes", ["no", "yes", 0, 1, None, {"cents": 3}])
async def test_only_true_and_false_decide_a_question(stage: Stage, yes: Any) -> None:
    """The text "no" approves nothing, nor do changed arguments in the place of the decision."""
    async with stage.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        (question,) = await runtime.questions()
        with pytest.raises(InvalidInput, match=f"by True or False, not {type(yes).__name__}"):
            await runtime.answer(question, yes)
        with pytest.raises(InvalidInput, match="by True or False"):
            await runtime.answer(question.id, yes, shown=question.shown)
        assert "QuestionAnswered" not in await kinds_of(run)
        await runtime.answer(question, False)
        assert await run.result(timeout=20) is False
