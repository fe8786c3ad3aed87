"""An error that says when to come back is not asked sooner."""

from datetime import UTC, datetime, timedelta

import pytest

import holdfast as hf
from holdfast import events
from tests.engine.stage import Stage, entries_of, parked


class Busy(Exception):
    """Somebody is busy, and says for how long."""

    def __init__(self, retry_after: object) -> None:
        super().__init__("come back later")
        self.retry_after = retry_after


def at(micros: int) -> datetime:
    """Return a time of the store's clock."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (120, 120.0),
        (timedelta(minutes=2), 120.0),
        ("date", 120.0),
        ("naive date", 120.0),
        (1e9, 300.0),
        (-5, 60.0),
        ("soon", 60.0),
        (float("nan"), 60.0),
        (None, 60.0),
    ],
)
async def test_the_next_attempt_is_due_when_the_error_says(stage: Stage, said: object, seconds: float) -> None:
    """Capped, never sooner than by the policy, and what is no time or duration is no wish."""
    began = stage.clock()
    if said == "date":
        said = at(began + 120_000_000)
    elif said == "naive date":
        said = at(began + 120_000_000).replace(tzinfo=None)
    tries: list[int] = []

    def flaky() -> str:
        tries.append(stage.clock())
        if len(tries) == 1:
            raise Busy(said)
        return "done"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(flaky, retry=hf.Retry(first=60.0, factor=1.0, most=60.0))

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "retry")
        [failed] = [entry for entry in await entries_of(run) if isinstance(entry, events.StepFailed)]
        assert failed.retry_at is not None
        due = (failed.retry_at - began) / 1e6
        # Half of the policy's own pause is chance.
        assert due == seconds if seconds > 60 else 30.0 <= due <= 60.0
        stage.clock.advance(due)
        assert await run.result(timeout=20) == "done"
