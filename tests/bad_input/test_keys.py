"""Keys and ids: what cannot be kept is refused, and what is kept is compared byte by byte."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from tests.bad_input.witness import BOUND_SECONDS, witnessed

COMPOSED: Final = "caf\u00e9"
DECOMPOSED: Final = "cafe\u0301"

REFUSED_KEYS: Final[dict[str, Any]] = {
    "empty": "",
    "a megabyte": "k" * 1_000_000,
    "a byte over the limit": "k" * (limits.KEY_BYTES + 1),
    "over the limit in bytes only": "é" * (limits.KEY_BYTES // 2 + 1),
    "a NUL": "a\x00b",
    "a lone surrogate": "a\ud800",
    "a number": 7,
    "a float": 1.5,
    "a truth": True,
    "bytes": b"key",
    "an object": object(),
    "a set of parts": {"a", "b"},
    "a mapping": {"a": "b"},
    "no parts": (),
    "an empty part": ("a", ""),
    "a part of none": ("a", None),
    "a part of truth": ("a", True),
    "a part of float": ("a", 1.5),
    "a part of bytes": ("a", b"b"),
    "a tuple in a tuple": ("a", ("b",)),
    "a lone surrogate in a part": ("a", "\udc00"),
    "parts of a megabyte": ("k" * 1_000_000, "a"),
    "a NUL encoded beyond the limit": ("\x00" * limits.KEY_BYTES,),
}
KEPT_KEYS: Final = (
    "../../etc/passwd",
    "a/../b",
    "/",
    ".",
    " ",
    "\n",
    "\x01\x7f",
    "'; DROP TABLE hf_runs; --",
    "%00",
    "%",
    "_",
    "*",
    "null",
    "0",
    "\ufeff",
    "\u202e",
    "\U0010ffff",
    "k" * limits.KEY_BYTES,
    "é" * (limits.KEY_BYTES // 2),
)


@hf.durable
async def echo(ctx: hf.Context, value: str) -> str:
    """Return the input."""
    return value


@pytest.mark.parametrize("what", REFUSED_KEYS)
async def test_a_key_that_cannot_be_kept_is_refused_and_starts_nothing(address: str, what: str) -> None:
    """An empty key is never replaced by a random one, nor a long one cut, nor another type taken for text."""
    async with witnessed(address) as runtime:
        for ask in (
            lambda: runtime.start(echo, "x", key=REFUSED_KEYS[what]),
            lambda: runtime.run(echo, "x", key=REFUSED_KEYS[what]),
            lambda: runtime.get(key=REFUSED_KEYS[what]),
        ):
            with pytest.raises(InvalidInput, match=r"key"):
                await ask()
        assert [run.name for run in await runtime.runs()] == ["bystander"]


async def test_a_strange_key_is_kept_as_it_is(address: str) -> None:
    """A key is text and nothing else: no path, no pattern, no SQL, and it finds its run again."""
    async with witnessed(address) as runtime:
        started = {}
        for key in KEPT_KEYS:
            run = await runtime.start(echo, key, key=key)
            assert await run.result(timeout=BOUND_SECONDS) == key
            started[key] = run.id
        assert len(set(started.values())) == len(KEPT_KEYS)
        for key, known in started.items():
            assert (await runtime.start(echo, key, key=key)).id == known
            assert (await runtime.get(key=key)).id == known
            assert (await (await runtime.get(known)).info()).key == key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (COMPOSED, DECOMPOSED),
        (("menu", COMPOSED), ("menu", DECOMPOSED)),
        ("key", "Key"),
        ("key", "key "),
        ("1", "01"),
        ("ﬁ", "fi"),
        (("a", "b/c"), ("a/b", "c")),
        (("a", "b"), ("a", "b", "0")),
    ],
    ids=["NFC and NFD", "NFC and NFD in a part", "case", "space", "zeros", "ligature", "slashes", "lengths"],
)
async def test_keys_that_look_alike_but_differ_in_bytes_are_two_keys(address: str, one: Any, other: Any) -> None:
    """Nothing is normalised: two texts that a person cannot tell apart still name two runs."""
    async with witnessed(address) as runtime:
        first = await runtime.start(echo, "first", key=one)
        second = await runtime.start(echo, "second", key=other)
        assert first.id != second.id
        assert await first.result(timeout=BOUND_SECONDS) == "first"
        assert await second.result(timeout=BOUND_SECONDS) == "second"
        assert (await runtime.get(key=one)).id == first.id
        assert (await runtime.get(key=other)).id == second.id


async def test_a_known_key_with_another_input_is_a_conflict_that_names_what_differs(address: str) -> None:
    """The same key with another input never joins, and never replaces, the run that has it."""
    async with witnessed(address) as runtime:
        first = await runtime.start(echo, COMPOSED, key="k")
        with pytest.raises(hf.Conflict) as caught:
            await runtime.start(echo, DECOMPOSED, key="k")
        assert (caught.value.run, caught.value.differs) == (first.id, ("input",))
        assert await first.result(timeout=BOUND_SECONDS) == COMPOSED


REFUSED_IDS: Final[dict[str, Any]] = {
    "empty": "",
    "text": "not-an-id",
    "a path": "../../etc/passwd",
    "upper case": "01A1E0DE-9553-7685-A8F4-3C1F088DFB87",
    "braces": "{01a1e0de-9553-7685-a8f4-3c1f088dfb87}",
    "no dashes": "01a1e0de95537685a8f43c1f088dfb87",
    "a newline behind": "01a1e0de-9553-7685-a8f4-3c1f088dfb87\n",
    "a NUL behind": "01a1e0de-9553-7685-a8f4-3c1f088dfb87\x00",
    "other digits": "٠1a1e0de-9553-7685-a8f4-3c1f088dfb87",
    "a lone surrogate": "\ud800",
    "a megabyte": "0" * 1_000_000,
    "a number": 7,
    "bytes": b"01a1e0de-9553-7685-a8f4-3c1f088dfb87",
}


@pytest.mark.parametrize("what", REFUSED_IDS)
async def test_what_is_not_a_run_id_is_refused_in_a_few_words(address: str, what: str) -> None:
    """A malformed id is bad input, not an unknown run, and its message stays readable."""
    async with witnessed(address) as runtime:
        asked = REFUSED_IDS[what]
        asks: list[Callable[[], Any]] = [
            lambda: runtime.get(asked),
            lambda: runtime.client.info(asked),
            lambda: runtime.client.wait(asked),
        ]
        for ask in asks:
            with pytest.raises(InvalidInput) as caught:
                await ask()
            assert len(str(caught.value)) < 300
        with pytest.raises(InvalidInput):
            await anext(aiter(runtime.client.events(asked)))


async def test_an_id_or_key_that_nobody_has_is_not_found(address: str) -> None:
    """Not found is its own answer, for every verb that takes an id."""
    nobody: Any = "01a1e0de-9553-7685-a8f4-3c1f088dfb87"
    async with witnessed(address) as runtime, asyncio.timeout(BOUND_SECONDS):
        asks: list[Callable[[], Any]] = [
            lambda: runtime.get(nobody),
            lambda: runtime.get(key="nobody"),
            lambda: runtime.client.info(nobody),
            lambda: runtime.client.wait(nobody),
            lambda: runtime.client.resolve(nobody, "0/step#1", 1),
            lambda: anext(aiter(runtime.client.events(nobody))),
            lambda: anext(aiter(runtime.client.verify(nobody))),
        ]
        for ask in asks:
            with pytest.raises(hf.NotFound):
                await ask()


async def test_giving_both_or_neither_of_id_and_key_is_refused(address: str) -> None:
    """A question that could mean two runs, or none, gets no guess."""
    async with witnessed(address) as runtime:
        with pytest.raises(InvalidInput):
            await runtime.get()
        with pytest.raises(InvalidInput):
            await runtime.get("01a1e0de-9553-7685-a8f4-3c1f088dfb87", key="k")


STEP_KEYS: Final[dict[str, Any]] = {
    "empty": "",
    "a megabyte": "k" * 1_000_000,
    "too long when encoded": "/" * limits.STEP_KEY_BYTES,
    "a lone surrogate": "\ud800",
    "a number": 7,
    "bytes": b"k",
    "a tuple": ("a", "b"),
}


@pytest.mark.parametrize("option", ["key", "name"])
@pytest.mark.parametrize("what", STEP_KEYS)
async def test_a_step_key_or_name_that_cannot_be_kept_fails_the_run_by_name(
    address: str, what: str, option: str
) -> None:
    """A step's address is checked before the step acts, and the failure is typed."""
    acted: list[int] = []

    def act() -> None:
        acted.append(1)

    options: dict[str, Any] = {option: STEP_KEYS[what]}

    @hf.durable
    async def asks(ctx: hf.Context) -> None:
        await ctx.step(act, **options)

    async with witnessed(address) as runtime:
        with pytest.raises(hf.RunError) as caught:
            await (await runtime.start(asks)).result(timeout=BOUND_SECONDS)
        assert caught.value.error is not None
        assert caught.value.error["code"] == "invalid_input"
        assert len(caught.value.reason) < 300
    assert not acted


async def test_strange_step_keys_are_kept_apart(address: str) -> None:
    """NFC and NFD, slashes, hashes and NULs in step keys and names each address a step of their own."""
    keys = [COMPOSED, DECOMPOSED, "../", "a/b", "a#1", "=a", "a", "\x00", "%00", " ", "~", "🙂"]

    @hf.durable
    async def asks(ctx: hf.Context) -> list[list[str]]:
        by_key = [await ctx.step(str, f"key {key}", key=key, returns=str) for key in keys]
        by_name = [await ctx.step(str, f"name {key}", name=key, returns=str) for key in keys]
        return [by_key, by_name]

    async with witnessed(address) as runtime:
        run = await runtime.start(asks)
        assert await run.result(timeout=BOUND_SECONDS) == [[f"key {k}" for k in keys], [f"name {k}" for k in keys]]
        steps = [event.step async for event in run.events() if isinstance(event, hf.events.StepCompleted)]
        assert len(set(steps)) == 2 * len(keys)


async def test_a_step_key_used_twice_is_refused(address: str) -> None:
    """Two steps cannot share one record."""

    @hf.durable
    async def asks(ctx: hf.Context) -> None:
        await ctx.step(int, key="k")
        await ctx.step(int, key="k")

    async with witnessed(address) as runtime:
        with pytest.raises(hf.RunError, match="was used before"):
            await (await runtime.start(asks)).result(timeout=BOUND_SECONDS)
