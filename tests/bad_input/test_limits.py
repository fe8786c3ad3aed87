"""The stated bounds, met exactly: what is at one is kept, and what is a byte over it is refused by name."""

from typing import Any

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.errors import PayloadTooLarge
from tests.bad_input import places
from tests.bad_input.witness import BOUND_SECONDS, failure, witnessed

OVERHEAD = {"run input": len(b'{"value":""}'), "step argument": len(b'{"value":""}')}
"""What stands around a text in its stored form, beside the quotes of a bare one."""


def text_at_limit(place: str) -> str:
    """Return the longest text that may be given at `place`."""
    return "x" * (limits.PAYLOAD_BYTES - OVERHEAD.get(place, len(b'""')))


@pytest.mark.parametrize("place", places.EVERY)
async def test_a_payload_at_the_limit_is_kept_and_a_byte_more_is_refused(address: str, place: str) -> None:
    """Payloads have a stated bound; what is over it is refused where it is given, and harms nobody else."""
    give = places.EVERY[place]
    text = text_at_limit(place)
    async with witnessed(address) as runtime:
        back = await (await give(runtime, text, Any)).result(timeout=BOUND_SECONDS)
        assert back in (True, text)
        if place == "run input":
            with pytest.raises(PayloadTooLarge) as caught:
                await give(runtime, text + "x", Any)
            said = str(caught.value)
        else:
            said = (await failure(await give(runtime, text + "x", Any))).reason
        assert f"is {limits.PAYLOAD_BYTES + 1:,} bytes; the limit is {limits.PAYLOAD_BYTES:,}" in said


@pytest.mark.parametrize("size", [limits.INLINE_BYTES - 2, limits.INLINE_BYTES - 1])
@pytest.mark.parametrize("place", places.ANNOTATED)
async def test_a_payload_comes_back_on_either_side_of_the_inline_limit(address: str, place: str, size: int) -> None:
    """Whether a value stands in its entry or in a blob is nobody's business but the store's."""
    text = "é" + "x" * (size - 2)
    async with witnessed(address) as runtime:
        assert await (await places.EVERY[place](runtime, text, str)).result(timeout=BOUND_SECONDS) == text


async def test_a_wide_value_is_not_taken_for_a_deep_one(address: str) -> None:
    """Depth is bounded, breadth is not: many lists beside each other are stored like any value."""
    wide: Any = [[[]] for _ in range(100_000)]
    async with witnessed(address) as runtime:
        run = await places.as_run_result(runtime, wide, Any)
        assert await run.result(timeout=BOUND_SECONDS) == wide


async def test_brackets_in_text_are_not_depth(address: str) -> None:
    """Depth counts lists and objects, not the characters of a text that shows some."""
    text = '[{"' * 1000 + '\\"['
    async with witnessed(address) as runtime:
        run = await places.as_run_result(runtime, {"a": [text, "\\", '"', "\\\\"]}, Any)
        assert await run.result(timeout=BOUND_SECONDS) == {"a": [text, "\\", '"', "\\\\"]}


async def test_a_message_over_the_bound_is_cut_and_says_so(address: str) -> None:
    """An error's words are bounded in the journal, and a reader sees that they were longer."""

    @hf.durable
    async def fails(ctx: hf.Context) -> None:
        raise ValueError("é" * limits.ERROR_BYTES)

    async with witnessed(address) as runtime:
        failed = await failure(await runtime.start(fails))
        assert failed.error is not None
        assert failed.error["message"].endswith("…")
        assert len(failed.error["message"].encode()) <= limits.ERROR_BYTES
