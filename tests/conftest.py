"""What every test here relies on: one event loop kind, and a clock that moves when told."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("holdfast.testing.contract")

from holdfast.testing import MovingClock  # noqa: E402 - asserts are rewritten only in what is imported later

# No deadline: a shared machine is slow now and then, and a slow example is not a wrong one.
settings.register_profile("holdfast", deadline=None, max_examples=100)
settings.load_profile("holdfast")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Holdfast runs on asyncio."""
    return "asyncio"


@pytest.fixture
def clock() -> MovingClock:
    """A store's clock, at rest."""
    return MovingClock()
