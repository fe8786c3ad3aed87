"""The store in one SQLite file keeps the contract of every store, and more because it is a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.ids import RunId, id_bytes
from holdfast.store.clock import Clock
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import RunRow
from holdfast.testing.contract import OpenStore, StoreContract

NUMBERED = """
    SELECT m.name FROM sqlite_master m, pragma_table_info(m.name) c
     WHERE m.type = 'table' AND m.name LIKE 'hf%' AND c.name = 'run' AND c.type = 'INTEGER' ORDER BY m.name
"""
"""The tables that have a run's number."""


def rows(store: Store, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """Run one statement on the store's file, behind its back."""
    assert isinstance(store, SqliteStore)
    connection = apsw.Connection(store.path)
    try:
        connection.set_busy_timeout(10_000)
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()


class TestSqliteStore(StoreContract):
    """The embedded default is held to the same promises."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        """A file of its own."""

        async def open_store(clock: Clock) -> Store:
            return await SqliteStore.open(str(tmp_path / "store.db"), clock=clock)

        return open_store

    async def remains(self, store: Store, row: RunRow) -> Sequence[str]:
        """Count the run's rows in every table."""
        held = [("hf_runs", "number"), *((table, "run") for [table] in rows(store, NUMBERED))]
        counts = (
            (table, rows(store, f"SELECT count(*) FROM {table} WHERE {of} = ?", (row.number,))) for table, of in held
        )
        return [f"{table}: {count}" for table, [[count]] in counts if count]

    async def damage_blob(self, store: Store, tenant: str, digest: str) -> None:
        """Cut the last byte off."""
        sql = "UPDATE hf_blobs SET body = substr(body, 1, length(body) - 1) WHERE tenant = ? AND digest = ?"
        rows(store, sql, (tenant, bytes.fromhex(digest)))

    async def budget_of(self, store: Store, run: RunId, channel: str) -> tuple[int, int, int, bool] | None:
        """Read the row."""
        sql = (
            "SELECT b.total, b.reserved, b.spent, b.unknown FROM hf_budgets b JOIN hf_runs r ON r.number = b.run "
            "WHERE r.run = ? AND b.channel = ?"
        )
        found = rows(store, sql, (id_bytes(run), channel))
        return (*found[0][:3], bool(found[0][3])) if found else None

    async def cursor_of(self, store: Store, tenant: str, conversation: str) -> tuple[str, bytes] | None:
        """Read the row."""
        sql = "SELECT harness, cursor FROM hf_conversations WHERE tenant = ? AND conversation = ? AND cursor NOTNULL"
        found = rows(store, sql, (tenant, conversation))
        return found[0] if found else None

    async def unseat(self, store: Store, tenant: str, conversation: str) -> None:
        """Change the row."""
        sql = "UPDATE hf_conversations SET active_run = NULL WHERE tenant = ? AND conversation = ?"
        rows(store, sql, (tenant, conversation))
