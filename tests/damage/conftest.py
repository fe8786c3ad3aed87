"""A specimen made once, and a fresh copy of it for every test."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.damage import specimen


@dataclass(frozen=True)
class Specimen:
    """A closed store with a run in every state, and the runs' ids by key."""

    path: Path
    ids: dict[str, str]


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    """The specimen itself, which nobody may change."""
    path = tmp_path_factory.mktemp("specimen") / "store.db"
    return Specimen(path, asyncio.run(specimen.make(path)))


@pytest.fixture
def fresh(original: Specimen, tmp_path: Path) -> Callable[[], Path]:
    """A function that gives another copy at each call."""
    made = iter(range(1_000_000))

    def copy() -> Path:
        path = tmp_path / f"copy-{next(made)}.db"
        specimen.copy(original.path, path)
        return path

    return copy
