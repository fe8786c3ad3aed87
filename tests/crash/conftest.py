"""Where a fleet of the tests works; what needs networks and clocks of its own is collected for root only."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.sites import Site, file_site, schema_site
from tests.rigs.server import Server

_HERE = Path(__file__).parent
# For anyone else: sudo make test ARGS=tests/crash/test_fleet_world.py
collect_ignore = [] if os.geteuid() == 0 else ["test_fleet_world.py"]


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """An empty place for a store, on each database."""
    if request.param == "sqlite":
        with file_site() as site:
            yield site
    else:
        server: Server = request.getfixturevalue("postgres_server")
        with schema_site(server) as site:
            yield site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder as slow: dying once, on one Python, is enough."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.slow)
