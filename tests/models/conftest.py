"""One provider on a real socket for each module of tests."""

from collections.abc import Iterator

import pytest

from tests.models.makers import Make, maker
from tests.rigs.provider import Provider


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """A loopback provider; what it says is told by model, so that tests do not meet."""
    with Provider() as running:
        yield running


@pytest.fixture(params=["openai", "anthropic"])
def make(request: pytest.FixtureRequest, provider: Provider) -> Make:
    """Make models of each provider that ask the rig."""
    return maker(request.param, provider)
