"""The store on PostgreSQL keeps the contract of every store."""

from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from holdfast.core.ids import RunId
from holdfast.store.clock import Clock
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.value import RunRow
from holdfast.testing.contract import OpenStore, StoreContract
from holdfast.testing.contract.conversing import CHAT, a_turn, end, taken
from holdfast.testing.contract.story import a_worker, claimed
from tests.rigs.server import plain

NUMBERED = """
    SELECT table_name::text FROM information_schema.columns
     WHERE table_schema = current_schema() AND column_name = 'run' AND data_type = 'bigint' ORDER BY table_name
"""
"""The tables that have a run's number."""


class TestPostgresStore(StoreContract):
    """A database shared by many machines is held to the same promises."""

    FORBIDDEN: ClassVar[Sequence[str]] = (
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT mine",
        "PREPARE TRANSACTION 'mine'",
        "SELECT 1; COMMIT",
        "/* quietly */ COMMIT",
        "SET search_path = holdfast",
        "LISTEN mine",
        "DO $$ BEGIN PERFORM 1; END $$",
        "SELECT * FROM hf_runs",
        "SELECT count(*) FROM HF_ENTRIES",
        'SELECT * FROM "holdfast"."hf_runs"',
        "DELETE FROM hf_entries",
        "UPDATE hf_runs SET fence = 99",
        "INSERT INTO accounts SELECT worker, 1 FROM hf_workers",
        "DROP TABLE hf_posts",
        "ALTER TABLE hf_runs ADD COLUMN mine text",
        "CREATE TABLE hf_mine (n INTEGER)",
        "CREATE INDEX mine ON hf_runs (name)",
    )
    ENDS_ITSELF: ClassVar[str] = "INSERT INTO accounts VALUES ('ann', 5)"

    @pytest.fixture
    def open_store(self, postgres_store: str) -> OpenStore:
        """A schema of its own, in which the user's tables are made too."""
        self.address = postgres_store
        schema = dict(pair.split("=") for pair in urlsplit(postgres_store).query.split("&"))["schema"]
        address = f"{postgres_store}&options={quote(f'-c search_path={schema}')}"

        async def open_store(clock: Clock) -> Store:
            return await PostgresStore.open(address, clock=clock)

        return open_store

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """Run one statement in the store's schema, behind its back."""
        with psycopg.connect(plain(self.address), autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []

    async def remains(self, store: Store, row: RunRow) -> Sequence[str]:
        """Count the run's rows in every table."""
        held = [("hf_runs", "number"), *((table, "run") for (table,) in self.rows(NUMBERED))]
        counts = ((table, self.rows(f"SELECT count(*) FROM {table} WHERE {of} = %s", row.number)) for table, of in held)
        return [f"{table}: {count}" for table, [(count,)] in counts if count]

    async def damage_blob(self, store: Store, tenant: str, digest: str) -> None:
        """Cut the last byte off."""
        sql = "UPDATE hf_blobs SET body = substr(body, 1, length(body) - 1) WHERE tenant = %s AND digest = %s"
        self.rows(sql, tenant, bytes.fromhex(digest))

    async def budget_of(self, store: Store, run: RunId, channel: str) -> tuple[int, int, int, bool] | None:
        """Read the row."""
        sql = (
            "SELECT b.total, b.reserved, b.spent, b.unknown FROM hf_budgets b JOIN hf_runs r ON r.number = b.run "
            "WHERE r.run = %s::uuid AND b.channel = %s"
        )
        found = self.rows(sql, run, channel)
        return found[0] if found else None

    async def cursor_of(self, store: Store, tenant: str, conversation: str) -> tuple[str, bytes] | None:
        """Read the row."""
        sql = "SELECT harness, cursor FROM hf_conversations WHERE tenant = %s AND conversation = %s AND cursor NOTNULL"
        found = self.rows(sql, tenant, conversation)
        return found[0] if found else None

    async def unseat(self, store: Store, tenant: str, conversation: str) -> None:
        """Change the row."""
        sql = "UPDATE hf_conversations SET active_run = NULL WHERE tenant = %s AND conversation = %s"
        self.rows(sql, tenant, conversation)

    async def test_the_number_of_a_damaged_turn_holds_up_none_behind_it(self, store: Store) -> None:
        """It is set aside, and its wrong number is not taken for how far the conversation has come."""
        worker = await a_worker(store)
        _, second = await a_turn(store), await a_turn(store)
        self.rows("UPDATE hf_runs SET turn = 99 WHERE conversation = %s AND turn = 1", CHAT)
        assert [*await taken(store, worker), *await taken(store, worker)] == [second]

    async def test_an_active_turn_that_has_ended_is_named(self, store: Store) -> None:
        """A conversation that waits for what is over is not left to wait in silence."""
        turn = await a_turn(store)
        await end(store, await claimed(store, await a_worker(store), turn))
        assert await store.check() == []
        self.rows("UPDATE hf_conversations SET active_run = (SELECT max(number) FROM hf_runs WHERE turn = 1)")
        assert any("'chat'" in finding for finding in await store.check())
