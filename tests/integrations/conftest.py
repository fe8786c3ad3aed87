"""Where a durable agent of another framework works, and who speaks for its model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.killer import Killer
from tests.rigs.provider import Provider

_SECONDS = 60.0


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    found: str = request.getfixturevalue("postgres_store")
    return found


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider of models on loopback."""
    with Provider() as provider:
        yield provider


@pytest.fixture(scope="session")
def pydantic_killer() -> Iterator[Killer]:
    """Processes that have pydantic-ai imported already."""
    with Killer(
        preload=["tests.integrations.pydantic_clerk", "holdfast.store.postgres"], timeout_seconds=_SECONDS
    ) as one:
        yield one


@pytest.fixture(scope="session")
def sdk_killer() -> Iterator[Killer]:
    """Processes that have the OpenAI Agents SDK imported already."""
    with Killer(preload=["tests.integrations.sdk_clerk", "holdfast.store.postgres"], timeout_seconds=_SECONDS) as one:
        yield one
