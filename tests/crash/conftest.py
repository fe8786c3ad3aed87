"""Where a fleet of the tests works; what needs networks and clocks of its own is collected for root only."""

import os
from collections.abc import Iterator

import pytest

from tests.chaos.sites import Site, file_site, schema_site
from tests.rigs.server import Server

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
