"""What a model writes as arguments is read strictly, and refused in words that help it."""

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.agent.arguments import BadArguments, read_arguments
from tests.agent.tools.test_schema import Color, Item, Size, Street


@hf.tool
def order(
    street: Street, items: list[Item], color: Color = Color.RED, size: Size | None = None, at: date | None = None
) -> None:
    """Order something."""


@hf.tool
def ping() -> str:
    """Say that you are there."""
    return "pong"


@hf.tool
def count(number: int, ratio: float = 1.0, anything: Any = None) -> None:
    """Count."""


def test_arguments_come_with_the_types_that_the_function_declares() -> None:
    """A dataclass is a dataclass, a model a model; what is left out stays out."""
    text = '{"street": {"name": "Elm"}, "items": [{"name": "lamp"}], "color": "blue", "at": "2026-11-16"}'
    assert order.read(text) == {
        "street": Street("Elm"),
        "items": [Item(name="lamp")],
        "color": Color.BLUE,
        "at": date(2026, 11, 16),
    }


@pytest.mark.parametrize("text", ["", "  \n", "{}", b"{}"])
def test_no_text_means_no_arguments(text: str | bytes) -> None:
    """Providers send an empty text for a call without arguments."""
    assert ping.read(text) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ('{"number": 1', "not valid JSON"),
        ('{"number": 1} {"number": 2}', "not valid JSON"),
        ('{"number": 1, "number": 2}', "'number' is given twice"),
        ('{"number": 1, "anything": [{"a": 1, "a": 1}]}', "'a' is given twice"),
        ("{" + ",".join(f'"a{n}": 1' for n in range(50_000)) + ', "a1": 1}', "'a1' is given twice"),
        ('{"number": NaN}', "NaN is not JSON"),
        ('{"number": 1, "ratio": -Infinity}', "-Infinity is not JSON"),
        ('{"number": 1, "ratio": 1e999}', "too large"),
        (f'{{"number": {2**64}}}', "at most 64 bits"),
        (f'{{"number": {"9" * 100_000}}}', "at most 64 bits"),
        ('{"number": 1, "anything": ' + "[" * 100_000 + "}", "200 levels"),
        ('{"number": 1, "anything": ' + "[" * 201 + "]" * 201 + "}", "200 levels"),
        ('{"number": 1, "anything": "\\ud83d"}', "surrogate"),
        (b'{"number": "\xff"}', "not valid JSON"),
        ('{"number": "1"}', "number: Expected `int`, got `str`"),
        ('{"number": 1.5}', "number: Expected `int`, got `float`"),
        ('{"number": true}', "number: Expected `int`, got `bool`"),
        ("{}", "'number' is missing"),
        ('{"number": 1, "more": 2}', "no argument 'more'"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_taken_are_refused_with_the_reason(text: str | bytes, says: str) -> None:
    """Whatever two readers could think differently of is refused, before anything is done."""
    with pytest.raises(BadArguments, match=says):
        count.read(text)


def test_a_tool_that_takes_any_object_takes_none_that_could_not_be_kept() -> None:
    """Of a tool whose server checks the arguments, what could not be kept is refused here all the same."""
    assert read_arguments("any", None, '{"a": [1]}') == {"a": [1]}
    with pytest.raises(BadArguments, match="200 levels"):
        read_arguments("any", None, '{"a": ' + "[" * 201 + "]" * 201 + "}")


def test_every_mistake_is_told_at_once_and_with_its_place() -> None:
    """A model that mends its call should need one more attempt, not five."""
    text = '{"street": {"name": 1}, "items": [{"name": "a"}, {"name": 2, "count": "2"}], "color": "green"}'
    with pytest.raises(BadArguments) as refused:
        order.read(text)
    said = str(refused.value)
    assert said.startswith("order was not called")
    for place in ("street.name: ", "items.1.name: ", "items.1.count: ", "color: "):
        assert place in said
    assert said.endswith("It takes arguments street, items, color, size, at.")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_json_is_read_or_refused(value: Any) -> None:
    """No text makes the reader fail in another way; what it takes can be stored."""
    try:
        read = count.read(json.dumps({"number": 1, "anything": value}))
    except BadArguments:
        return
    assert read["anything"] == value
