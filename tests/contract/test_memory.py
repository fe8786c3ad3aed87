"""The store in memory keeps the contract of every store."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.core.ids import RunId
from holdfast.store.clock import Clock
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from holdfast.store.value import RunRow
from holdfast.testing.contract import OpenStore, StoreContract


class TestMemoryStore(StoreContract):
    """The documentation of the other drivers is held to the same promises."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """A store that ends with the test."""

        async def open_store(clock: Clock) -> Store:
            return MemoryStore(clock=clock)

        return open_store

    async def remains(self, store: Store, row: RunRow) -> Sequence[str]:
        """Look into every dictionary."""
        assert isinstance(store, MemoryStore)
        by_run = ("_rows", "_entries", "_posts", "_chunks")
        found = [name for name in by_run if getattr(store, name).get(row.run)]
        found += ["_blobs"] if store._blobs.named.get(row.run) else []
        pairs = {"_consumed": store._consumed, "_budgets": store._budgets}
        return found + [name for name, of in pairs.items() if any(run == row.run for run, _ in of)]

    async def damage_blob(self, store: Store, tenant: str, digest: str) -> None:
        """Cut the last byte off."""
        assert isinstance(store, MemoryStore)
        store._blobs.bodies[tenant, digest] = store._blobs.bodies[tenant, digest][:-1]

    async def budget_of(self, store: Store, run: RunId, channel: str) -> tuple[int, int, int, bool] | None:
        """Look into the dictionary."""
        assert isinstance(store, MemoryStore)
        account = store._budgets.get((run, channel))
        return (account.total, account.reserved, account.spent, account.unknown) if account is not None else None

    async def cursor_of(self, store: Store, tenant: str, conversation: str) -> tuple[str, bytes] | None:
        """Look into the dictionary."""
        assert isinstance(store, MemoryStore)
        return store._cursors.get((tenant, conversation))

    async def unseat(self, store: Store, tenant: str, conversation: str) -> None:
        """Change the conversation's row."""
        assert isinstance(store, MemoryStore)
        rows = store._turns.rows
        rows[tenant, conversation] = replace(rows[tenant, conversation], active=None)
