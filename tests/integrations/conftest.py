"""Where a durable agent of another framework works, and who speaks for its model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.provider import Provider


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
