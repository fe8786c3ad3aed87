"""DBOS on asyncio or in threads (`plain`), on SQLite with rollback journal or WAL (`wal`), or at an address."""

import asyncio
from dataclasses import replace
from typing import Any

import psycopg
import sqlalchemy
from dbos import DBOS, DBOSConfig

from benchmarks.workload import (
    Gate,
    Load,
    Sample,
    count_rows,
    main,
    measure,
    pragmas,
    server_settings,
    stored_bytes,
)

_OUTPUTS = "SELECT count(*) FROM operation_outputs"
_SERVER_OUTPUTS = "SELECT count(*) FROM dbos.operation_outputs"
_POOL = 20
"""How many connections DBOS opens unless it is told otherwise."""


class Connections:
    """Forces every connection of DBOS to synchronous=FULL, and keeps what it would have run at for the report."""

    def __init__(self, *, wal: bool) -> None:
        self.settings: dict[str, str] = {}
        self._wal = wal
        sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", self._connected)

    def _connected(self, connection: Any, record: object) -> None:
        before = pragmas(lambda sql: connection.execute(sql).fetchone()[0])
        connection.execute("PRAGMA synchronous=FULL")
        if self._wal:
            connection.execute("PRAGMA journal_mode=WAL")
        self.settings |= pragmas(lambda sql: connection.execute(sql).fetchone()[0])
        self.settings["synchronous_by_default"] = before["synchronous"]


class Asynchronous:
    """Asynchronous workflows and steps on one event loop."""

    def __init__(self, payload: str, settings: dict[str, str]) -> None:
        self.settings = settings
        self._gate: Gate | None = None

        @DBOS.step()
        async def step(number: int) -> str:
            return payload

        @DBOS.workflow()
        async def steps() -> int:
            gate = self._gate
            assert gate is not None
            await step(-1)
            await gate.arrive()
            done = 0
            while gate.more(done):
                await step(done)
                done += 1
            gate.leave(done)
            return done

        @DBOS.workflow()
        async def one() -> str:
            return await step(0)

        self._steps, self._one = steps, one

    async def run(self, gate: Gate) -> None:
        self._gate = gate
        await self._steps()

    async def once(self) -> None:
        await self._one()


class Plain:
    """Plain workflows and steps: alone in the caller's thread, at once in the threads that DBOS starts for them."""

    def __init__(self, payload: str, settings: dict[str, str], *, alone: bool) -> None:
        self.settings = settings
        self._alone = alone
        self._gate: Gate | None = None

        @DBOS.step()
        def step(number: int) -> str:
            return payload

        @DBOS.workflow()
        def steps() -> int:
            gate = self._gate
            assert gate is not None
            step(-1)
            gate.arrive_in_thread()
            done = 0
            while gate.more(done):
                step(done)
                done += 1
            gate.leave(done)
            return done

        @DBOS.workflow()
        def one() -> str:
            return step(0)

        self._steps, self._one = steps, one

    async def run(self, gate: Gate) -> None:
        self._gate = gate
        if self._alone:
            self._steps()
        else:
            handle = DBOS.start_workflow(self._steps)
            await asyncio.to_thread(handle.get_result)

    async def once(self) -> None:
        self._one()


def _config(load: Load) -> DBOSConfig:
    database = load.directory / "dbos.db"
    config: DBOSConfig = {
        "name": "benchmark",
        "system_database_url": load.address or f"sqlite:///{database}",
        "log_level": "ERROR",
    }
    if load.address:
        config["sys_db_pool_size"] = max(_POOL, load.runs)
    return config


async def work(load: Load) -> Sample:
    """Measure DBOS."""
    connections = None if load.address else Connections(wal="wal" in load.variant)
    settings = connections.settings if connections is not None else {}
    DBOS(config=_config(load))
    subject = (
        Plain(load.payload, settings, alone=load.runs == 1)
        if "plain" in load.variant
        else Asynchronous(load.payload, settings)
    )
    DBOS.launch()
    sample = await measure(subject, load)
    await asyncio.to_thread(DBOS.destroy)
    if not load.address:
        stored = count_rows(load.directory / "dbos.db", _OUTPUTS)
        return replace(sample, stored=stored, bytes=stored_bytes(load.directory), settings=subject.settings)
    with psycopg.connect(load.address) as connection:
        (stored,) = connection.execute(_SERVER_OUTPUTS).fetchone() or (0,)
        settings = server_settings(lambda sql: connection.execute(sql.encode()).fetchone())
    return replace(sample, stored=stored, settings=settings)


if __name__ == "__main__":
    main(work)
