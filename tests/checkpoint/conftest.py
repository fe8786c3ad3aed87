"""Where the checkpoints of these tests live: every store, and for most one file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The address of a store that is not yet there."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, file: str) -> Iterator[str | Store]:
    """A store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        yield file
    else:
        yield request.getfixturevalue("postgres_store")
