"""One server for every module, with the program of this folder."""

from collections.abc import Iterator

import pytest

from tests.server.program import app
from tests.server.serving import Asking, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a worker."""
    with Served(tmp_path_factory.mktemp("served") / "runs.db", app) as served:
        yield served


@pytest.fixture(scope="module")
def ask(served: Served) -> Iterator[Asking]:
    """A client of it."""
    with served.client() as client:
        yield Asking(client)
