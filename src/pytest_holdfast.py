"""Fixtures for tests of durable functions; Holdfast itself is not imported before one of them is used."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.testing import ClockedRuntime, MovingClock

_MARKER = (
    "holdfast(jumps=True, store=None, concurrency=64): how the fixture `holdfast_runtime` opens its runtime; "
    "the arguments are those of holdfast.testing.open"
)
_NO_LOOP = (
    'holdfast_runtime is for async tests, which nothing runs here: set anyio_mode = "auto" under '
    "[tool.pytest.ini_options], or mark the test with @pytest.mark.anyio; a plain test takes holdfast_plain_runtime"
)
_JUMPS = "whether the clock of `holdfast_runtime` jumps to what is due while a run is waited for (default: true)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting for all tests; the marker says otherwise for one."""
    parser.addini("holdfast_jumps", _JUMPS, type="bool", default=True)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, so that strict markers accept it."""
    config.addinivalue_line("markers", _MARKER)


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """Say what the async fixture needs, where no plugin has made something of it that pytest can call."""
    if fixturedef.argname == "holdfast_runtime" and inspect.isasyncgenfunction(fixturedef.func):
        pytest.fail(_NO_LOOP, pytrace=False)


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = {"jumps": request.config.getini("holdfast_jumps")}
    for marker in reversed(list(request.node.iter_markers("holdfast"))):
        options |= marker.kwargs
    return options


@pytest.fixture
def holdfast_app() -> App | None:
    """What `holdfast_runtime` can drive: override it with your `hf.App`. Without one, what is started is added."""
    return None


@pytest.fixture
def holdfast_clock() -> MovingClock:
    """The clock of `holdfast_runtime`, the same object as its `clock`."""
    from holdfast.testing import MovingClock  # lazy: who runs other tests does not load Holdfast

    return MovingClock()


@pytest.fixture
async def holdfast_runtime(
    request: pytest.FixtureRequest, holdfast_app: App | None, holdfast_clock: MovingClock
) -> AsyncIterator[ClockedRuntime]:
    """A runtime for an async test, on a store in memory that goes with it."""
    from holdfast import testing  # lazy: the same

    async with testing.open(holdfast_app, clock=holdfast_clock, **_options(request)) as runtime:
        yield runtime


@pytest.fixture
def holdfast_plain_runtime(
    request: pytest.FixtureRequest, holdfast_app: App | None, holdfast_clock: MovingClock
) -> Iterator[ClockedRuntime]:
    """The same for a plain test, which waits by `runtime.wait(...)`."""
    from holdfast import testing  # lazy: the same

    with testing.open(holdfast_app, clock=holdfast_clock, **_options(request)) as runtime:
        yield runtime
