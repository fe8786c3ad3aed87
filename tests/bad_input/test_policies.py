"""What is declared of a run or a step is checked before anything is done under it."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.core.errors import InvalidInput
from tests.bad_input.places import start
from tests.bad_input.witness import BOUND_SECONDS, failure, openings, witnessed

NAN: Final = float("nan")
ENDLESS: Final = float("inf")
BAD_DURATIONS: Final[dict[str, Any]] = {
    "nan": NAN,
    "endless": ENDLESS,
    "negative": -1.0,
    "a negative timedelta": timedelta(seconds=-1),
    "longer than time": 1e300,
    "the longest timedelta": timedelta.max,
    "text": "soon",
    "a truth": True,
    "bytes": b"1",
    "a list": [1],
    "a complex number": 1j,
}
BAD_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{f"timeout {name}": {"timeout": value} for name, value in BAD_DURATIONS.items()},
    "timeout of nothing": {"timeout": 0.0},
    "retry by number": {"retry": 3},
    "retry by text": {"retry": "often"},
    "retry by class": {"retry": hf.Retry},
    "effect by another word": {"effect": "twice"},
    "effect by number": {"effect": 1},
    "effect by list": {"effect": ["once"]},
    "in_doubt by another word": {"in_doubt": "hope"},
    "in_doubt by truth": {"in_doubt": True},
    "verify by value": {"verify": 7},
    "not_performed by text": {"not_performed": "ValueError"},
    "not_performed by value": {"not_performed": (7,)},
    "not_performed by instance": {"not_performed": (ValueError(),)},
    "returns what no value has": {"returns": 7},
    "returns a union of classes": {"returns": hf.Retry | hf.App},
    "an option that does not exist": {"retries": 3},
}


def act() -> int:
    """Do something that must not be done."""
    raise AssertionError("the step acted")


@pytest.mark.parametrize("what", BAD_OPTIONS)
async def test_a_step_with_a_bad_option_fails_its_run_before_it_acts(address: str, what: str) -> None:
    """A policy that means nothing is a typed error at the call, not a surprise when the step fails."""

    async def asks(ctx: hf.Context) -> None:
        await ctx.step(act, **BAD_OPTIONS[what])

    async with witnessed(address) as runtime:
        failed = await failure(await start(runtime, asks))
        assert failed.error is not None
        assert failed.error["code"] in ("invalid_input", "invalid_value"), failed.reason


@pytest.mark.parametrize("what", [name for name in BAD_OPTIONS if name != "an option that does not exist"])
def test_a_bad_option_is_refused_where_a_step_is_declared(what: str) -> None:
    """The decorator checks what it is told when the module is loaded, or when the function is first asked for."""
    with pytest.raises(InvalidInput):
        hf.step(**BAD_OPTIONS[what])(act)


BAD_RETRIES: Final[dict[str, dict[str, Any]]] = {
    "no attempts": {"attempts": 0},
    "half an attempt": {"attempts": 1.5},
    "attempts in text": {"attempts": "3"},
    "attempts of truth": {"attempts": True},
    "a factor below one": {"factor": 0.5},
    "a factor of nan": {"factor": NAN},
    "an endless factor": {"factor": ENDLESS},
    "a factor in text": {"factor": "2"},
    **{f"first {name}": {"first": value} for name, value in BAD_DURATIONS.items()},
    **{f"most {name}": {"most": value} for name, value in BAD_DURATIONS.items()},
    "on text": {"on": "ValueError"},
    "on a list of values": {"on": [7]},
    "on no class": {"on": (ValueError(),)},
}


@pytest.mark.parametrize("what", BAD_RETRIES)
def test_a_retry_that_cannot_be_kept_to_is_refused(what: str) -> None:
    """Arithmetic over attempts needs numbers that add up, and is checked where it is written."""
    with pytest.raises(InvalidInput):
        hf.Retry(**BAD_RETRIES[what])


def test_the_longest_retry_still_adds_up() -> None:
    """However many attempts and whatever the factor, the wait is a number below its cap."""
    retry = hf.Retry(attempts=10**9, first=1e-6, factor=1e300, most=60.0)
    assert retry.delay_seconds(10**9 - 1, 0.999) <= 60.0


@pytest.mark.parametrize("what", [name for name in BAD_DURATIONS if "negative" not in name])
async def test_a_result_is_not_waited_for_with_a_bad_timeout(address: str, what: str) -> None:
    """A wait whose end cannot be computed is refused, instead of becoming a wait without end."""

    async def sleeps(ctx: hf.Context) -> None:
        await asyncio.get_running_loop().create_future()

    async with witnessed(address) as runtime:
        run = await start(runtime, sleeps)
        with pytest.raises(InvalidInput):
            await run.result(timeout=BAD_DURATIONS[what])


async def test_a_timeout_that_is_over_is_a_timeout(address: str) -> None:
    """No time left, or less than none, is an answer at once, and the run goes on."""

    async def sleeps(ctx: hf.Context) -> None:
        await asyncio.get_running_loop().create_future()

    async with witnessed(address) as runtime:
        run = await start(runtime, sleeps)
        for over in (0, -1.0, timedelta(seconds=-1), 1e-9):
            with pytest.raises(TimeoutError, match="goes on"):
                await run.result(timeout=over)


@pytest.mark.parametrize("what", BAD_DURATIONS)
async def test_a_run_is_not_started_with_a_bad_delay(address: str, what: str) -> None:
    """A run whose due time cannot be computed is never created: nothing would ever claim it."""

    async def never(ctx: hf.Context) -> None:
        raise AssertionError("it ran")

    async with witnessed(address) as runtime:
        with pytest.raises(InvalidInput, match="delay"):
            await runtime.start(hf.durable(never), delay=BAD_DURATIONS[what])
        assert [run.name for run in await runtime.runs()] == ["bystander"]


BAD_LABELS: Final[dict[str, Any]] = {
    "a list": [("a", "b")],
    "text": "a=b",
    "a number as name": {1: "a"},
    "a number as value": {"a": 1},
    "no value": {"a": None},
    "an empty name": {"": "a"},
    "a NUL": {"a": "\x00"},
    "a NUL in a name": {"\x00": "a"},
    "a lone surrogate": {"a": "\ud800"},
    "a lone surrogate in a name": {"\ud800": "a"},
    "a megabyte": {"a": "b" * 1_000_000},
    "a megabyte of name": {"a" * 1_000_000: "b"},
    "too many": {str(number): "b" for number in range(5000)},
    "too many bytes of few characters": {"a": "é" * 2049},
}


@pytest.mark.parametrize("what", BAD_LABELS)
async def test_labels_that_cannot_be_kept_are_refused(address: str, what: str) -> None:
    """Labels are text to search by; anything else is refused before there is a run."""
    async with witnessed(address) as runtime:
        with pytest.raises(InvalidInput):
            await runtime.start(hf.durable(unlabelled), labels=BAD_LABELS[what])
        assert [run.name for run in await runtime.runs()] == ["bystander"]


async def unlabelled(ctx: hf.Context) -> None:
    """Do nothing."""


async def test_strange_labels_are_kept_and_found(address: str) -> None:
    """NFC and NFD, quotes, percent signs and JSON in labels are text like any other."""
    durable = hf.durable(unlabelled)
    labels = ({"caf\u00e9": "x"}, {"cafe\u0301": "x"}, {"a": "%"}, {"a": '"}'}, {'"}': "a"}, {"a": ""}, {"$.a": "[0]"})
    async with witnessed(address) as runtime:
        started = [await runtime.start(durable, labels=each) for each in labels]
        for run, each in zip(started, labels, strict=True):
            await run.result(timeout=BOUND_SECONDS)
            assert [found.id for found in await runtime.runs(labels=each)] == [run.id]
            assert (await run.info()).labels == each


BAD_FILTERS: Final[dict[str, dict[str, Any]]] = {
    "an unknown status": {"status": "asleep"},
    "a status of number": {"status": 3},
    "no runs": {"limit": 0},
    "too many runs": {"limit": 1001},
    "a limit in text": {"limit": "10"},
    "half a run": {"limit": 1.5},
    "a place that is no run": {"before": "x"},
    "labels in a list": {"labels": ["a"]},
    "labels that are not text": {"labels": {"a": 1}},
    "a name that is not text": {"name": 7},
    "a name with a lone surrogate": {"name": "\ud800"},
    "labels with a lone surrogate": {"labels": {"a": "\ud800"}},
}


@pytest.mark.parametrize("what", BAD_FILTERS)
async def test_a_list_of_runs_is_not_filtered_by_nonsense(address: str, what: str) -> None:
    """A filter that no run could match by its kind is bad input, on every driver alike."""
    async with witnessed(address) as runtime:
        with pytest.raises(InvalidInput):
            await runtime.runs(**BAD_FILTERS[what])


async def seconds_needed(ctx: hf.Context, first: int, second: str = "b") -> str:
    """Have one parameter without and one with a default."""
    return f"{first} {second}"


BAD_ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "too few": (),
    "too many": (1, "b", 3),
    "of another type": ("one",),
    "of another type further on": (1, 2),
    "none for a number": (None,),
    "a truth for a number": (True,),
    "a float for a number": (1.5,),
}


@pytest.mark.parametrize("what", BAD_ARGUMENTS)
async def test_arguments_that_do_not_fit_start_nothing(address: str, what: str) -> None:
    """The number and the types of a run's arguments are checked before there is a run."""
    async with witnessed(address) as runtime:
        with pytest.raises(InvalidInput):
            await start(runtime, seconds_needed, *BAD_ARGUMENTS[what])
        assert [run.name for run in await runtime.runs()] == ["bystander"]
        assert await (await start(runtime, seconds_needed, 1)).result(timeout=BOUND_SECONDS) == "1 b"


async def test_a_step_called_with_arguments_that_do_not_fit_fails_as_python_says(address: str) -> None:
    """A wrong call of a step's function is that step's failure, with Python's own words."""

    def two(first: int, second: int) -> int:
        return first + second

    calls: dict[str, tuple[tuple[Any, ...], str]] = {
        "few": ((1,), "missing 1 required positional argument"),
        "many": ((1, 2, 3), "takes 2 positional arguments"),
        "type": ((1, "2"), "unsupported operand"),
    }

    @hf.durable
    async def asks(ctx: hf.Context, how: str) -> int:
        return await ctx.step(two, *calls[how][0])

    async with witnessed(address) as runtime:
        for how, (_, words) in calls.items():
            assert words in (await failure(await runtime.start(asks, how))).reason


NOT_FUNCTIONS: Final[dict[str, Any]] = {
    "nothing": None,
    "text": "act",
    "a number": 7,
    "a coroutine's result": [],
}


@pytest.mark.parametrize("what", NOT_FUNCTIONS)
async def test_a_step_that_is_no_function_is_refused(address: str, what: str) -> None:
    """`ctx.step` says what it wants when it is given something else."""

    async def asks(ctx: hf.Context) -> None:
        await ctx.step(NOT_FUNCTIONS[what])

    async with witnessed(address) as runtime:
        assert "wants a function" in (await failure(await start(runtime, asks))).reason


def unresolvable() -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
    """Be annotated with a name that does not exist."""


def misspelt() -> "hf.Nowhere":  # type: ignore[name-defined]
    """Be annotated with an attribute that does not exist."""


def ungrammatical() -> None:
    """Be annotated with what is not an expression."""


def calling() -> None:
    """Be annotated with an expression that raises."""


ungrammatical.__annotations__["return"] = "int |"
calling.__annotations__["return"] = "1 / 0"


def of_two_classes() -> hf.Retry | hf.App:
    """Be annotated with a union that no decoder can tell apart."""
    raise AssertionError("the step acted")


BAD_ANNOTATIONS: Final = (unresolvable, misspelt, ungrammatical, calling, of_two_classes)


@pytest.mark.parametrize("function", BAD_ANNOTATIONS)
async def test_a_step_whose_annotation_cannot_be_read_is_refused_by_name(
    address: str, function: Callable[[], Any]
) -> None:
    """An annotation that no decoder can be made from is an error before the step acts."""

    async def asks(ctx: hf.Context) -> None:
        await ctx.step(function)

    async with witnessed(address) as runtime:
        failed = await failure(await start(runtime, asks))
        assert failed.error is not None
        assert failed.error["code"] in ("invalid_input", "invalid_value")


@pytest.mark.parametrize("annotation", ["Nowhere", "hf.Nowhere", "int |", "1 / 0", hf.Retry | hf.App])
@pytest.mark.parametrize("where", ["value", "return"])
async def test_a_durable_function_whose_annotation_cannot_be_read_starts_nothing(
    address: str, annotation: Any, where: str
) -> None:
    """A run that could never store its result, or read its input, is refused before it exists."""

    async def gives(ctx: hf.Context, value: int = 0) -> int:
        return value

    gives.__annotations__[where] = annotation
    async with witnessed(address) as runtime:
        with pytest.raises(InvalidInput):
            await start(runtime, gives, 1)
        assert [run.name for run in await runtime.runs()] == ["bystander"]


async def test_a_refused_call_that_the_code_survives_is_refused_again_on_replay(address: str) -> None:
    """A verb that was refused for its arguments took no place in the journal, so a replay goes the same way."""
    told: list[list[str]] = []
    parted = asyncio.Event()

    async def part() -> None:
        parted.set()
        await asyncio.get_running_loop().create_future()

    def fine(number: Any) -> int:
        return int(number)

    @hf.durable(name="survives")
    async def survives(ctx: hf.Context) -> list[str]:
        refusals: list[str] = []
        told.append(refusals)
        bad_calls: list[Callable[[], Any]] = [
            lambda: ctx.emit(NAN),
            lambda: ctx.emit(object()),
            lambda: ctx.emit(1, name=""),
            lambda: ctx.step(fine, NAN),
            lambda: ctx.step(fine, object()),
            lambda: ctx.step(fine, 1, key=""),
            lambda: ctx.step(unresolvable),
            *(lambda options=options: ctx.step(fine, 1, **options) for options in BAD_OPTIONS.values()),
        ]
        for number, call in enumerate(bad_calls):
            try:
                await call()
            except InvalidInput as error:
                refusals.append(f"{number} {error}")
            refusals.append(str(await ctx.step(fine, number)))
        if len(told) == 1:
            await ctx.step(part)
        return refusals

    opened = openings(address)
    async with asyncio.timeout(3 * BOUND_SECONDS):
        async with hf.open(await opened(), hf.App(survives)) as runtime:
            await runtime.start(survives, key="k")
            await parted.wait()
        async with hf.open(await opened(), hf.App(survives)) as runtime:
            run: hf.Run[list[str]] = await runtime.get(key="k")
            assert await run.result(timeout=BOUND_SECONDS) == told[0]
    assert told[0] == told[1]
    assert len(told[0]) == 2 * (7 + len(BAD_OPTIONS))
