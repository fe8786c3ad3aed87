"""Each kind of store, opened as often as a test likes."""

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.runtime import Opening
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store

Open = Callable[..., Opening]


class _Shared(MemoryStore):
    """A store in memory that outlives those who have it open."""

    async def close(self) -> None:
        pass


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the one store of the test, each time as another process would."""
    store: str | Store = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "memory":
        store = _Shared()
    elif request.param == "postgresql":
        store = request.getfixturevalue("postgres_store")

    def opened(*functions: hf.Durable[object, ...], work: bool = True) -> Opening:
        return hf.open(store, hf.App(*functions), work=work)

    return opened
