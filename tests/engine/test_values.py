"""Live equals replayed: what a step or a run returned is what every later reading returns, or it is refused at once."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

import holdfast as hf
from holdfast import events
from holdfast.core import limits
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, soon


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: tuple[int, ...] = ()


class Order(msgspec.Struct):
    """A struct."""

    id: UUID
    points: list[Point]


class Customer(pydantic.BaseModel):
    """A model."""

    name: str
    since: datetime


class Movie(TypedDict):
    """A typed dict."""

    title: str


class Place(NamedTuple):
    """A named tuple."""

    lat: float


SAME: list[tuple[Any, Any]] = [
    (Point, Point(1, (2, 3))),
    (Order, Order(UUID(int=3), [Point(1)])),
    (Customer, Customer(name="Ann", since=datetime(2026, 1, 1, tzinfo=UTC))),
    (Movie, {"title": "Mirror"}),
    (Place, Place(1.5)),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (bytes, b"\x00\xff"),
    (Decimal, Decimal("1.10")),
    (timedelta, timedelta(days=2)),
    (dict[int, Point], {7: Point(1)}),
    (int, 2**70),
    (None, None),
    (Any, {"a": [1, None, 2.5]}),
    (list[Customer] | None, [Customer(name="Ann", since=datetime(2026, 1, 1, tzinfo=UTC))]),
]


@pytest.mark.parametrize(("annotation", "value"), SAME, ids=lambda part: str(part)[:30])
async def test_a_steps_result_has_the_same_type_and_value_live_and_after_a_resume(
    stage: Stage, annotation: Any, value: Any
) -> None:
    """The first execution already gets what a replay will read; the run's result and its input too."""
    got: list[Any] = []
    hurdle = Hurdle()

    async def make(given: Any) -> Any:
        return given

    make.__annotations__ |= {"return": annotation}

    async def tale(ctx: hf.Context, given: Any) -> Any:
        got.append(given)
        got.append(await ctx.step(make, given))
        await ctx.step(hurdle)
        return got[-1]

    tale.__annotations__ |= {"given": annotation, "return": annotation}
    durable: Any = hf.durable(name="tale")(tale)
    async with stage.open(durable) as runtime:
        await runtime.start(durable, value, key="k")
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(durable) as runtime:
        got.append(await (await runtime.get(key="k", of=durable)).result(timeout=20))
    assert len(got) == 5
    assert all(each == value and type(each) is type(value) for each in got)


@pytest.mark.parametrize("value", [(1, 2), {1, 2}, {1: 2}, b"x", Point(1), datetime(2026, 1, 1, tzinfo=UTC)])
async def test_an_unannotated_result_that_would_change_is_refused_at_once(stage: Stage, value: Any) -> None:
    """The first execution fails, not the first resume, and the error says to annotate."""

    async def make():  # type: ignore[no-untyped-def]
        return value

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(make)
        except hf.StepError as error:
            return f"{error.type}: {error.message}"
        return "kept"

    async with stage.open(tale) as runtime:
        told = await soon(runtime.run(tale))
    assert told.startswith("InvalidValue: ")
    assert "annotate it" in told


async def test_a_result_of_another_type_than_declared_is_refused(stage: Stage) -> None:
    """An annotation is a promise: None is not an int."""

    async def make() -> int:
        return None  # type: ignore[return-value]

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.step(make)

    @hf.durable
    async def other(ctx: hf.Context) -> int:
        return "text"  # type: ignore[return-value]

    async with stage.open(tale, other) as runtime:
        with pytest.raises(hf.RunError, match="does not come back as int: "):
            await soon(runtime.run(tale))
        with pytest.raises(hf.RunError, match="the result of other"):
            await soon(runtime.run(other))


async def test_a_failed_step_fails_alike_live_and_after_a_resume(stage: Stage) -> None:
    """Type, message and attempts are the journal's, so that code which looks at them takes the same path."""
    told: list[tuple[Any, ...]] = []
    hurdle = Hurdle()

    async def fail() -> None:
        raise KeyError("missing")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await ctx.step(fail, retry=hf.Retry(attempts=2, first=0.0))
        except hf.StepError as error:
            told.append((type(error), str(error), error.step, error.type, error.message, error.attempts))
        await ctx.step(hurdle)

    async with stage.open(tale) as runtime:
        await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        await (await runtime.start(tale, key="k")).result(timeout=20)
    assert told[0] == told[1]
    assert told[0][2:] == ("0/fail#1", "KeyError", "'missing'", 2)


class TestLarge:
    """What is too large for its entry stands beside it; what is too large for the store fails by name."""

    LARGE = "x" * (limits.INLINE_BYTES + 1)

    async def test_large_inputs_results_and_endings_are_blobs(self, stage: Stage) -> None:
        """The journal stays small, and a resume reads them as they were."""
        hurdle = Hurdle()

        async def double(text: str) -> str:
            return text * 2

        @hf.durable
        async def tale(ctx: hf.Context, text: str) -> str:
            doubled = await ctx.step(double, text)
            await ctx.emit(doubled)
            await ctx.step(hurdle)
            return doubled

        async with stage.open(tale) as runtime:
            await runtime.start(tale, self.LARGE, key="k")
            await soon(hurdle.reached.wait())
        hurdle.open.set()
        async with stage.open(tale) as runtime:
            run = await runtime.get(key="k", of=tale)
            assert await run.result(timeout=20) == self.LARGE * 2
            info = await run.info()
            assert (info.input, info.result) == ({"text": self.LARGE}, self.LARGE * 2)
            for entry in await entries_of(run):
                if isinstance(entry, events.RunStarted | events.Emitted | events.RunFinished):
                    assert entry.blob is not None
                    assert entry.value is None
        (size,) = stage.execute("SELECT max(length(body)) FROM hf_entries")[0]
        assert size < 1000
        # Two of the four payloads are the same bytes, and are kept once.
        assert stage.execute("SELECT count(*) FROM hf_blobs")[0] == (2,)

    async def test_a_damaged_blob_sets_its_run_aside_before_any_effect(self, stage: Stage) -> None:
        """A resume that cannot read a recorded result performs nothing and says which."""
        hurdle, performed = Hurdle(), list[str]()

        async def make() -> str:
            performed.append("made")
            return self.LARGE

        @hf.durable
        async def tale(ctx: hf.Context) -> int:
            try:
                text = await ctx.step(make)
            except Exception:
                text = ""
            await ctx.step(hurdle)
            return len(text)

        async with stage.open(tale) as runtime:
            await runtime.start(tale, key="k")
            await soon(hurdle.reached.wait())
        hurdle.reached.clear()
        stage.execute("UPDATE hf_blobs SET body = substr(body, 2)")
        async with stage.open(tale) as runtime:
            run = await runtime.get(key="k")
            with pytest.raises(hf.RunError, match="0/make#1: blob") as damaged:
                await run.result(timeout=20)
            assert (damaged.value.status, (await run.info()).status) == ("quarantined", hf.Status.QUARANTINED)
        assert performed == ["made"]
        assert not hurdle.reached.is_set()

    @pytest.mark.parametrize("where", ["result", "input", "ending"])
    async def test_a_payload_over_the_limit_fails_at_once_by_name(self, stage: Stage, where: str) -> None:
        """It is not retried for ever: the culprit is named, and the run ends."""
        huge = "x" * limits.PAYLOAD_BYTES

        async def make(text: str) -> str:
            return huge if where == "result" else text

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            await ctx.step(make, huge if where == "input" else "small", retry=hf.Retry(attempts=1))
            return huge if where == "ending" else "small"

        named = {
            "result": "the result of 0/make#1",
            "input": "the input of step 0/make#1",
            "ending": "the result of tale",
        }
        async with stage.open(tale) as runtime:
            with pytest.raises(hf.RunError, match=f"{named[where]} is 16,777,2.. bytes"):
                await soon(runtime.run(tale))


class TestSecrets:
    """The values of named environment variables never reach the journal."""

    async def journal(self, stage: Stage, run: hf.Run[Any]) -> bytes:
        """Return all stored bytes of the run's entries, chunks and blobs."""
        rows = stage.execute("SELECT body FROM hf_entries UNION ALL SELECT body FROM hf_chunks")
        return b"\n".join(body for (body,) in rows + stage.execute("SELECT body FROM hf_blobs"))

    async def test_they_are_taken_out_of_results_errors_and_events(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Live and replayed code see the same redacted value; nothing stored holds the secret."""
        secret = 'sk-"12\\3/é'
        monkeypatch.setenv("STRIPE_KEY", secret)
        monkeypatch.setenv("EMPTY", "")
        hurdle = Hurdle()

        async def leak(step: hf.Step[None]) -> dict[str, str]:
            step.emit(f"chunk {secret}")
            return {"header": f"Bearer {secret}", "again": secret}

        async def fail() -> None:
            raise ValueError(f"bad key {secret}")

        seen: list[Any] = []

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            seen.append(await ctx.step(leak))
            await ctx.emit([secret])
            try:
                await ctx.step(fail)
            except hf.StepError as error:
                seen.append(error.message)
            await ctx.step(hurdle)
            raise RuntimeError(f"ended with {secret}")

        names = ["STRIPE_KEY", "EMPTY", "MISSING"]
        async with stage.open(tale, secrets=names) as runtime:
            await runtime.start(tale, key="k")
            await soon(hurdle.reached.wait())
        hurdle.open.set()
        async with stage.open(tale, secrets=names) as runtime:
            run = await runtime.start(tale, key="k")
            with pytest.raises(hf.RunError, match=r"ended with \[STRIPE_KEY\]"):
                await run.result(timeout=20)
            stored = await self.journal(stage, run)
        assert seen[:2] == seen[2:]
        assert seen[0] == {"header": "Bearer [STRIPE_KEY]", "again": "[STRIPE_KEY]"}
        assert seen[1] == "bad key [STRIPE_KEY]"
        assert b"sk-" not in stored
        assert stored.count(b"[STRIPE_KEY]") >= 5

    async def test_a_secret_that_is_a_number_spoils_no_number(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only text is redacted: a PIN in the environment does not break every result that holds its digits."""
        monkeypatch.setenv("PIN", "1234")

        async def count() -> dict[str, Any]:
            return {"count": 1234, "size": 912345, "note": "the pin is 1234", "1234": True}

        @hf.durable
        async def tale(ctx: hf.Context) -> dict[str, Any]:
            return await ctx.step(count)

        async with stage.open(tale, secrets=["PIN"]) as runtime:
            counted = await soon(runtime.run(tale))
        assert (counted["count"], counted["size"], counted["note"]) == (1234, 912345, "the pin is [PIN]")

    async def test_one_secret_inside_another_hides_both(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """The longer one is taken out first, whatever order they were named in."""
        monkeypatch.setenv("SHORT", "hunter")
        monkeypatch.setenv("LONG", "hunter-two")

        async def leak() -> str:
            return "hunter-two and hunter"

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            return await ctx.step(leak)

        async with stage.open(tale, secrets=["SHORT", "LONG"]) as runtime:
            assert await soon(runtime.run(tale)) == "[LONG] and [SHORT]"


async def test_an_errors_text_is_bounded_and_always_text(stage: Stage) -> None:
    """A huge or unprintable message does not grow the journal or break it."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise LookupError

    async def shout() -> None:
        raise ValueError("a" * 10**6)

    async def be_rude() -> None:
        raise Rude

    async def half() -> None:
        raise ValueError("half a pair: \ud800")

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int]:
        sizes = []
        for step in (shout, be_rude, half):
            try:
                await ctx.step(step)
            except hf.StepError as error:
                sizes.append(len(error.message))
        return sizes

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        sizes = await run.result(timeout=20)
        assert await kinds_of(run) == ["RunStarted", "StepFailed", "StepFailed", "StepFailed", "RunFinished"]
    assert sizes[0] <= limits.ERROR_BYTES + 1
    assert all(sizes)
