"""What is declared of a tool, and what it is then."""

from typing import Any, Literal

import pytest

import holdfast as hf
from holdfast.agent.arguments import BadArguments
from holdfast.agent.tool import as_tool, checked_tools
from holdfast.core.errors import InvalidInput

Word = Literal["repeat", "keyed", "once"]


def refund(order: str, cents: int = 100) -> str:
    """Pay money back.

    Args:
        cents: How much.
    """
    return f"{order}: {cents}"


def test_a_tool_is_told_and_called_like_its_function() -> None:
    """Its name, its docstring and its parameters are what the model reads; calling it calls the function."""
    tool = hf.tool(refund)
    assert (tool.name, tool.spec.description) == ("refund", "Pay money back.")
    assert tool.spec.schema["properties"]["cents"] == {"type": "integer", "description": "How much.", "default": 100}
    assert tool("42", cents=5) == "42: 5"
    named = hf.tool(name="pay_back", description="Give back.")(refund)
    assert (named.name, named.spec.description, named.code.name) == ("pay_back", "Give back.", "pay_back")


def test_a_tool_is_once_unless_somebody_says_otherwise() -> None:
    """A model that repeats itself must not pay twice; what `@hf.step` declared beside the function counts too."""
    assert hf.tool(refund).policy.effect is hf.Effect.ONCE
    assert hf.tool(effect="repeat")(refund).policy.effect is hf.Effect.REPEAT

    @hf.tool
    @hf.step(effect="keyed", timeout=3)
    def declared() -> None: ...

    assert (declared.policy.effect, declared.policy.timeout) == (hf.Effect.KEYED, 3)


def test_a_tool_error_is_no_doubt_and_no_reason_to_try_again() -> None:
    """Whoever raises it knows what happened; only who names it in `on=` wants another attempt for it."""
    tool = hf.tool(retry=hf.Retry(attempts=3), not_performed=[ConnectionError])(refund)
    assert tool.policy.not_performed == (ConnectionError, hf.ToolError)
    assert not hf.Retry(attempts=3).wants(hf.ToolError("no"), 1)
    assert hf.Retry(attempts=3, on=(hf.ToolError,)).wants(hf.ToolError("no"), 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effect": "twice"}, "effect="),
        ({"effect": "repeat", "verify": lambda order, cents: True}, "verify= is for effect='once'"),
        ({"effect": "repeat", "in_doubt": "wait"}, "in_doubt= is for effect='once'"),
        ({"in_doubt": "hope"}, "'tell', 'wait' or 'raise'"),
        ({"timeout": -1}, "timeout="),
        ({"heartbeat": 3}, "hf.Step"),
        ({"needs_approval": "yes"}, "needs_approval="),
        ({"needs_approval": lambda cents: True}, "needs_approval= of refund .*order"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any], says: str) -> None:
    """A slip is found where it is written."""
    with pytest.raises(InvalidInput, match=says):
        hf.tool(**options)(refund)


def test_a_result_that_could_never_be_told_is_refused_by_its_annotation() -> None:
    """An effect whose result is a connection would happen for nothing."""

    def connect() -> InvalidInput:
        return InvalidInput("")

    with pytest.raises(InvalidInput, match=r"connect returns .* not data"):
        hf.tool(connect)


def test_a_person_is_asked_by_the_arguments_of_the_call() -> None:
    """A predicate is given every argument, defaults included; one that fails asks rather than lets it pass."""
    dear = hf.tool(needs_approval=lambda order, cents: cents >= 100)(refund)
    assert dear.needs_approval(dear.read('{"order": "42"}'))
    assert not hf.tool(needs_approval=lambda order, cents: cents > 100)(refund).needs_approval({"order": "42"})
    assert not dear.needs_approval(dear.read('{"order": "42", "cents": 5}'))
    broken = hf.tool(needs_approval=lambda order, cents: order > cents)(refund)
    assert broken.needs_approval({"order": "42"})
    assert hf.tool(needs_approval=True)(refund).needs_approval({})
    assert not hf.tool(refund).needs_approval({})


def test_a_durable_function_is_a_tool_whose_calls_are_runs() -> None:
    """Its context is not shown, and what is declared of steps cannot be declared of it."""

    @hf.durable
    async def research(ctx: hf.Context, topic: str) -> str:
        """Look something up."""
        return topic

    tool = as_tool(research)
    assert tool.child is research
    assert (tool.name, tool.spec.description) == ("research", "Look something up.")
    assert tool.read('{"topic": "sea"}') == {"topic": "sea"}
    with pytest.raises(BadArguments):
        tool.read('{"ctx": 1, "topic": "sea"}')
    assert hf.tool(needs_approval=True, name="dig")(research).needs_approval({})
    with pytest.raises(InvalidInput, match="timeout= is for its steps"):
        hf.tool(timeout=3)(research)


def test_two_tools_of_one_name_are_refused() -> None:
    """A call must mean one of them."""
    one = as_tool(refund)
    assert checked_tools([one, one]) == {"refund": one}
    with pytest.raises(InvalidInput, match="two tools are called 'refund'"):
        checked_tools([one, as_tool(refund)])


async def test_a_tool_as_a_step_of_plain_code_is_what_it_was_declared_to_be() -> None:
    """`ctx.step(refund)` of a tool that is once must not become a step that may be repeated."""
    attempts = []

    @hf.tool
    async def pay(step: hf.Step[None], cents: int) -> str:
        attempts.append(step.idempotency_key)
        raise ConnectionError

    @hf.durable
    async def shop(ctx: hf.Context) -> str:
        try:
            return await ctx.step(pay, 5)
        except hf.InDoubt:
            return "in doubt"

    async with hf.testing.open(app=hf.App(shop)) as runtime:
        assert await runtime.run(shop) == "in doubt"
    assert len(attempts) == 1
