"""A `verify` with annotations says of itself that it may return `hf.NOT_DONE`."""

from typing import Any

import pytest

import holdfast as hf
from tests.engine.stage import Stage


def plain(order: str) -> str | hf.NotDone:
    """Find it."""
    return f"found {order}"


async def later(order: str) -> hf.NotDone | str | None:
    """Find it after a while."""
    return f"found {order}"


def never(order: str) -> hf.NotDone:
    """Say that it cannot have happened; here it cannot tell."""
    raise LookupError("the bank is closed")


@pytest.mark.parametrize(
    ("verify", "result"),
    [(plain, "found A1"), (later, "found A1"), (never, "in doubt")],
    ids=["plain", "async", "never"],
)
async def test_its_annotation_is_no_type_of_a_result(stage: Stage, verify: Any, result: str) -> None:
    """What it finds is checked by the step's own type; that it may find nothing is not stored."""

    @hf.step(effect="once", verify=verify)
    async def pay(order: str) -> str:
        raise ConnectionResetError("the answer never came")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            return await ctx.step(pay, "A1")
        except hf.InDoubt:
            return "in doubt"

    async with stage.open(tale) as runtime:
        assert await (await runtime.start(tale)).result(timeout=20) == result
