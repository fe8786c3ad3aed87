"""What every test of bad input runs on: both drivers that need no server."""

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of each driver."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
