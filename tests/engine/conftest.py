"""The stage that every test here plays on."""

from pathlib import Path

import pytest

from holdfast.testing import MovingClock
from tests.engine.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, clock: MovingClock) -> Stage:
    """A store on disk that is not yet there."""
    return Stage(tmp_path / "store.db", clock)
