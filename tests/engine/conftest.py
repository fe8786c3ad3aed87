"""The stage that every test here plays on."""

from pathlib import Path

import pytest

from holdfast.testing import MovingClock
from tests.engine.stage import MemoryStage, PostgresStage, Stage


@pytest.fixture
def stage(tmp_path: Path, clock: MovingClock) -> Stage:
    """A store on disk that is not yet there."""
    return Stage(tmp_path / "store.db", clock)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def every(request: pytest.FixtureRequest, tmp_path: Path, clock: MovingClock) -> Stage:
    """The stage on each kind of store."""
    if request.param == "memory":
        return MemoryStage(clock)
    if request.param == "sqlite":
        return Stage(tmp_path / "store.db", clock)
    return PostgresStage(request.getfixturevalue("postgres_store"), clock)
