"""What a program is put together from: addresses, apps, functions and their names."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.errors import InvalidInput, StoreError
from tests.bad_input.witness import BOUND_SECONDS, openings, witnessed


@hf.durable
async def nothing(ctx: hf.Context) -> None:
    """Do nothing."""


BAD_ADDRESSES: Final[dict[str, Any]] = {
    "a path": "store.db",
    "no path": "sqlite://",
    "an empty path": "sqlite:///",
    "no scheme": "://store.db",
    "another scheme": "mysql://localhost/holdfast",
    "another case": "SQLITE:///store.db",
    "in memory": "sqlite:///:memory:",
    "a NUL": "sqlite:///{folder}/a\x00b",
    "a lone surrogate": "sqlite:///{folder}/a\ud800b",
    "a path of a megabyte": "sqlite:///{folder}/" + "a" * 1_000_000,
    "a folder": "sqlite:///{folder}",
    "a folder that is not there": "sqlite:///{folder}/none/store.db",
    "a file below a file": "sqlite:///{folder}/file/store.db",
    "a file of something else": "sqlite:///{folder}/file",
    "a device": "sqlite:////dev/null",
    "an endless device": "sqlite:////dev/zero",
    "a full device": "sqlite:////dev/full",
    "a pipe": "sqlite:///{folder}/pipe",
    "a number": 7,
    "bytes": b"sqlite:///store.db",
    "a Path": Path("store.db"),
    "an object": object(),
}


@pytest.mark.parametrize("what", BAD_ADDRESSES)
async def test_an_address_that_is_no_store_is_refused_in_words(tmp_path: Path, what: str) -> None:
    """A wrong address is a typed error that names it, whatever lies there, and nothing there is changed."""
    (tmp_path / "file").write_bytes(b"something else\n" * 100)
    os.mkfifo(tmp_path / "pipe")
    address = BAD_ADDRESSES[what]
    if isinstance(address, str):
        address = address.replace("{folder}", str(tmp_path))
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises((InvalidInput, StoreError)) as caught:
        async with asyncio.timeout(BOUND_SECONDS), hf.open(address):
            pass
    assert len(str(caught.value)) < 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_bytes() == b"something else\n" * 100


async def test_a_path_of_strange_characters_is_a_file_like_any_other(tmp_path: Path) -> None:
    """NFC and NFD, spaces, question marks and percent signs in a path name a file, and two files are two stores."""
    names = ["caf\u00e9.db", "cafe\u0301.db", "a b.db", "a?mode=memory", "a%20b.db", "a#b", "file:x", "-"]
    for name in names:
        async with asyncio.timeout(BOUND_SECONDS), hf.open(f"sqlite:///{tmp_path}/{name}") as runtime:
            await runtime.run(nothing, key="k")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


BAD_OPENINGS: Final[dict[str, dict[str, Any]]] = {
    "no concurrency": {"concurrency": 0},
    "negative concurrency": {"concurrency": -1},
    "half a run at once": {"concurrency": 1.5},
    "concurrency in text": {"concurrency": "many"},
    "concurrency of truth": {"concurrency": True},
    "an app that is none": {"app": 7},
    "a function for an app": {"app": nothing},
}


@pytest.mark.parametrize("what", BAD_OPENINGS)
async def test_a_runtime_is_not_opened_with_nonsense(address: str, what: str) -> None:
    """What `hf.open` is told is checked before a store is touched."""
    with pytest.raises(InvalidInput):
        async with hf.open(address, **BAD_OPENINGS[what]):
            pass


BAD_APPS: Final[dict[str, Callable[[], Any]]] = {
    "a plain function": lambda: hf.App(len),  # type: ignore[arg-type]
    "nothing": lambda: hf.App(None),  # type: ignore[arg-type]
    "two functions of one name": lambda: hf.App(nothing, hf.durable(name="nothing")(BAD_APPS_OTHER)),
    "deps that cannot be called": lambda: hf.App(nothing, deps=7),  # type: ignore[arg-type]
    "a version of number": lambda: hf.App(nothing, version=7),  # type: ignore[arg-type]
    "an empty version": lambda: hf.App(nothing, version=""),
    "a version with a lone surrogate": lambda: hf.App(nothing, version="\ud800"),
    "a version with a bar": lambda: hf.App(nothing, version="a|b"),
    "a version of a megabyte": lambda: hf.App(nothing, version="v" * 1_000_000),
    "one secret's name in letters": lambda: hf.App(nothing, secrets="STRIPE_KEY"),
    "secrets that are not names": lambda: hf.App(nothing, secrets=[7]),  # type: ignore[list-item]
}


async def BAD_APPS_OTHER(ctx: hf.Context) -> None:  # noqa: N802
    """Be another function."""


@pytest.mark.parametrize("what", BAD_APPS)
def test_an_app_of_nonsense_is_refused(what: str) -> None:
    """An app is checked when it is made; a secret's name given as letters would hide nothing."""
    with pytest.raises(InvalidInput):
        BAD_APPS[what]()


def plain(ctx: hf.Context) -> None:
    """Be no coroutine function."""


async def no_context() -> None:
    """Have no parameter at all."""


async def open_ended(ctx: hf.Context, *args: int) -> None:
    """Take any number of arguments."""


async def by_keyword(ctx: hf.Context, **options: int) -> None:
    """Take any keyword."""


async def by_place_only(ctx: hf.Context, value: int, /) -> int:
    """Have a parameter without a name that can be used."""
    return value


BAD_DURABLES: Final[dict[str, Callable[[], Any]]] = {
    "a plain function": lambda: hf.durable(plain),  # type: ignore[arg-type]
    "no context": lambda: hf.durable(no_context),  # type: ignore[arg-type]
    "any number of arguments": lambda: hf.durable(open_ended),
    "any keyword": lambda: hf.durable(by_keyword),  # type: ignore[arg-type]
    "parameters by place only": lambda: hf.durable(by_place_only),
    "a number": lambda: hf.durable(7),  # type: ignore[call-overload]
    "an empty name": lambda: hf.durable(name="")(BAD_APPS_OTHER),
    "a name of number": lambda: hf.durable(name=7)(BAD_APPS_OTHER),  # type: ignore[call-overload]
    "a name with a NUL": lambda: hf.durable(name="a\x00")(BAD_APPS_OTHER),
    "a name with a lone surrogate": lambda: hf.durable(name="\ud800")(BAD_APPS_OTHER),
    "a name that is too long": lambda: hf.durable(name="n" * (limits.NAME_BYTES + 1))(BAD_APPS_OTHER),
}


@pytest.mark.parametrize("what", BAD_DURABLES)
def test_what_cannot_be_durable_is_refused_when_it_is_declared(what: str) -> None:
    """A function that could not be resumed, or a name that could not be kept, is an error at its decorator."""
    with pytest.raises(InvalidInput):
        BAD_DURABLES[what]()


async def test_a_run_of_a_strange_name_is_claimed_like_any_other(address: str) -> None:
    """Quotes, backslashes, line ends and combining marks in a name keep nobody from finding its runs."""
    names = ['say "hi"', "back\\slash", "new\nline", "\x01", "caf\u00e9", "cafe\u0301", "a'b", "$.a", "%", "x" * 256]
    durables = [hf.durable(name=name)(BAD_APPS_OTHER) for name in names]
    opened = openings(address)
    async with hf.open(await opened(), work=False) as runtime:
        for durable in durables:
            await runtime.start(durable, key=durable.name)
    async with hf.open(await opened(), hf.App(*durables)) as runtime:
        for name in names:
            run: hf.Run[Any] = await runtime.get(key=name)
            assert await run.result(timeout=BOUND_SECONDS) is None
            assert (await run.info()).name == name
            assert [found.id for found in await runtime.runs(name=name)] == [run.id]


BAD_CURSORS: Final = (
    "x", "-1", "1:", "1:2", "1:2:3:4", "01", "1@", "1@0", "1@x", "1 ", " 1", "1\n", "1\x00", "١", "\ud800", "9" * 19,
    "9" * 1_000_000, "1:0:1", "5", "1:9:1", -1, 1.0, True, b"1", object(),
)  # fmt: skip


async def test_a_cursor_that_no_feed_sent_is_refused(address: str) -> None:
    """A malformed cursor, or one ahead of the journal, is a typed error and never a silent start from anywhere."""
    async with witnessed(address) as runtime:
        run = await runtime.start(nothing)
        await run.result(timeout=BOUND_SECONDS)
        for cursor in BAD_CURSORS:
            with pytest.raises(InvalidInput) as caught:
                async with asyncio.timeout(BOUND_SECONDS):
                    await anext(aiter(run.events(after=cursor)))  # type: ignore[arg-type]
            assert len(str(caught.value)) < 300
        with pytest.raises(hf.Conflict, match="epoch"):
            await anext(aiter(run.events(after="1@2")))


async def test_what_is_emitted_under_a_bad_name_is_refused(address: str) -> None:
    """An event's name is kept like a step's: text, and not too long."""

    @hf.durable
    async def emits(ctx: hf.Context, which: int) -> None:
        names: list[Any] = ["", "n" * 1_000_000, "\ud800", 7, b"n", None]
        await ctx.emit(1, name=names[which])

    async with witnessed(address) as runtime:
        for which in range(6):
            with pytest.raises(hf.RunError) as caught:
                await (await runtime.start(emits, which)).result(timeout=BOUND_SECONDS)
            assert caught.value.error is not None
            assert caught.value.error["code"] == "invalid_input"


async def test_ending_a_doubt_that_does_not_exist_is_refused(address: str) -> None:
    """A person's word about a step that is not in doubt changes nothing."""
    async with witnessed(address) as runtime:
        run = await runtime.start(nothing)
        await run.result(timeout=BOUND_SECONDS)
        for step in ("0/step#1", "", "\x00", "x" * 1_000_000):
            with pytest.raises(hf.NotFound):
                await run.resolve(step, 1)
