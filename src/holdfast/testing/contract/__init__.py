"""The contract of every store, as tests: subclass `StoreContract` and say how yours is opened."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.store.clock import Clock
from holdfast.store.protocol import Store
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.committing import CommitContract
from holdfast.testing.contract.conversing import ConversationContract
from holdfast.testing.contract.creating import CreateContract
from holdfast.testing.contract.deleting import DeleteContract, SweepContract
from holdfast.testing.contract.enrolling import VersionContract
from holdfast.testing.contract.forking import ForkContract
from holdfast.testing.contract.leasing import LeaseContract
from holdfast.testing.contract.limiting import LimitContract
from holdfast.testing.contract.posting import InboxContract
from holdfast.testing.contract.reading import BlobContract, ChunkContract, ListContract, ReadContract, WatchContract
from holdfast.testing.contract.shelving import ShelfContract
from holdfast.testing.contract.transacting import TransactContract

__all__ = ["OpenStore", "StoreContract"]

OpenStore = Callable[[Clock], Awaitable[Store]]
"""Opens an empty store whose time is what the clock says."""


class StoreContract(
    CreateContract,
    CommitContract,
    LeaseContract,
    VersionContract,
    InboxContract,
    ReadContract,
    ChunkContract,
    BlobContract,
    ListContract,
    WatchContract,
    TransactContract,
    LimitContract,
    DeleteContract,
    SweepContract,
    ForkContract,
    ConversationContract,
    ShelfContract,
):
    """Everything that the engine, the feed and the client rely on in a store.

    Give your subclass an `open_store` fixture, and the methods that look behind the verbs: `remains`,
    `damage_blob`, `budget_of`, `cursor_of` and `unseat`. The tests are async: pytest needs `anyio_mode = "auto"`.
    """

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Return how to open an empty store."""
        raise NotImplementedError("a store's contract needs an `open_store` fixture")

    @pytest.fixture
    def clock(self) -> MovingClock:
        """The store's clock, at rest."""
        return MovingClock()

    @pytest.fixture
    async def store(self, open_store: OpenStore, clock: MovingClock) -> AsyncIterator[Store]:
        """An empty store."""
        store = await open_store(clock)
        yield store
        await store.close()
