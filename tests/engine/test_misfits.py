"""An argument that does not fit is refused with what would have been right."""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

import holdfast as hf
from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidInput
from holdfast.core.sample import sample_of
from tests.engine.stage import Stage


@dataclass
class Order:
    """A value with a type of its own."""

    id: str
    cents: int
    note: str = ""


@hf.durable
async def buy(ctx: hf.Context, order: Order, times: int = 1) -> str:
    """Take two arguments, one of them needed."""
    return order.id


async def refusal(stage: Stage, *args: Any) -> InvalidInput:
    """Return how a start is refused."""
    start: Any
    async with stage.open(buy) as runtime:
        start = runtime.start
        with pytest.raises(InvalidInput) as refused:
            await start(buy, *args)
        assert await runtime.runs() == []
    return refused.value


async def test_a_wrong_type_is_named_with_what_was_wanted_and_given(stage: Stage) -> None:
    """Whoever passes a dict for a dataclass reads which parameter it was, and a call that works."""
    error = await refusal(stage, {"id": "a"})
    assert "argument 'order' of buy must be Order, not {'id': 'a'} of type dict" in str(error)
    assert "Object missing required field `cents`" in str(error)
    assert "This would be taken: start(buy, Order(id='text', cents=1, note=''))" in error.hint
    second = await refusal(stage, Order("a", 1), "twice")
    assert "argument 'times' of buy must be int, not 'twice' of type str" in str(second)
    assert second.hint.endswith("start(buy, Order(id='text', cents=1, note=''), 1)")


async def test_what_is_no_data_keeps_its_own_hint(stage: Stage) -> None:
    """A client among the arguments belongs into deps, whatever type was annotated."""
    assert "App(deps=)" in (await refusal(stage, object())).hint


async def test_too_many_and_too_few_are_told_what_it_takes(stage: Stage) -> None:
    """The signature stands in the hint."""
    for args in ((), (1, 2, 3)):
        assert (await refusal(stage, *args)).hint.startswith("It takes: buy(order: ")


class Colour(enum.Enum):
    """An enum."""

    RED = "red"


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str


class Form(TypedDict):
    """A typed dict."""

    size: float


class Cat(msgspec.Struct, tag="cat"):
    """A tagged struct."""

    lives: int


@pytest.mark.parametrize(
    "annotation",
    [
        int, str, bool, float, None, Any, int | None, list[int], set[str], tuple[int, str], tuple[int, ...],
        dict[str, int], dict[int, list[Order]], datetime, Colour, Literal["a", 1], Pair, Form, Cat, Order,
        Cat | None, bytes,
    ],
    ids=str,
)  # fmt: skip
def test_a_sample_is_read_as_its_type(annotation: Any) -> None:
    """What a message shows as right is right."""
    codec = Codec(annotation)
    body = sample_of(codec)
    assert body is not None
    codec.decode(body)


class Foreign:
    """A class that no sample is known of."""


def test_where_no_sample_is_known_none_is_shown() -> None:
    """Better no example than a wrong one."""
    assert sample_of(Codec(Foreign)) is None
    assert sample_of(Codec(dict[str, Foreign])) is None
