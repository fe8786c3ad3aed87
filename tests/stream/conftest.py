"""A store of each driver for the read side."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import MovingClock


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: MovingClock) -> AsyncIterator[Store]:
    """An empty store."""
    store: Store
    if request.param == "memory":
        store = MemoryStore(clock=clock)
    else:
        store = await SqliteStore.open(str(tmp_path / "store.db"), clock=clock)
    yield store
    await store.close()
