"""Savers on the three stores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.integrations.langgraph import HoldfastSaver


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of each kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store that outlives who has it open."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"sqlite:///{tmp_path / 'kept.db'}"


@pytest.fixture
def saver(address: str) -> Iterator[HoldfastSaver]:
    """A saver on an empty store of each kind."""
    with HoldfastSaver(address) as saver:
        yield saver


@pytest.fixture
def file_saver(tmp_path: Path) -> Iterator[HoldfastSaver]:
    """A saver on a file."""
    with HoldfastSaver(f"sqlite:///{tmp_path / 'file.db'}") as saver:
        yield saver
