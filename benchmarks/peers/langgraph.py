"""LangGraph: one looping node, `durability="sync"`, the SQLite saver; on asyncio, or in threads (`plain`)."""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import aiosqlite
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.peers.looping import Looping, config
from benchmarks.workload import Gate, Load, Sample, count_rows, main, measure, pragmas, stored_bytes

_STEPS = "SELECT count(*) FROM checkpoints WHERE json_extract(metadata, '$.step') > 0"
"""Checkpoint -1 holds a run's input and checkpoint 0 its start; each later one is a step that was made."""


class Asynchronous:
    """`ainvoke` over `AsyncSqliteSaver`."""

    def __init__(self, load: Load, connection: aiosqlite.Connection) -> None:
        self.settings = {"saver": "AsyncSqliteSaver", "durability": "sync"}
        self._loop = Looping(load.payload)
        self._graph = self._loop.compile(self._loop.step, AsyncSqliteSaver(connection))

    async def run(self, gate: Gate) -> None:
        self._loop.gate = gate
        gate.leave((await self._invoke())["done"] - 1)

    async def once(self) -> None:
        await self._invoke()

    async def _invoke(self) -> Any:
        return await self._graph.ainvoke({"done": 0, "result": ""}, config(), durability="sync")


class Plain:
    """`invoke` over `SqliteSaver`: alone in the caller's thread, at once in a thread each."""

    def __init__(self, load: Load, connection: sqlite3.Connection) -> None:
        self._threads = ThreadPoolExecutor(max_workers=load.runs) if load.runs > 1 else None
        self.settings = {"saver": "SqliteSaver", "durability": "sync"}
        self._loop = Looping(load.payload)
        self._graph = self._loop.compile(self._loop.step_in_thread, SqliteSaver(connection))

    async def run(self, gate: Gate) -> None:
        self._loop.gate = gate
        if self._threads is None:
            self._run(gate)
        else:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._run, gate)

    def _run(self, gate: Gate) -> None:
        gate.leave(self._invoke()["done"] - 1)

    async def once(self) -> None:
        self._invoke()

    def _invoke(self) -> Any:
        return self._graph.invoke({"done": 0, "result": ""}, config(), durability="sync")


async def _plain(load: Load, database: str) -> Sample:
    connection = sqlite3.connect(database, check_same_thread=False)
    by_default = pragmas(lambda sql: connection.execute(sql).fetchone()[0])["synchronous"]
    connection.execute("PRAGMA synchronous=FULL")
    subject = Plain(load, connection)
    sample = await measure(subject, load)
    settings = subject.settings | pragmas(lambda sql: connection.execute(sql).fetchone()[0])
    connection.close()
    return replace(sample, settings=settings | {"synchronous_by_default": by_default})


async def _asynchronous(load: Load, database: str) -> Sample:
    async with aiosqlite.connect(database) as connection:
        by_default = (await _pragmas(connection))["synchronous"]
        await connection.execute("PRAGMA synchronous=FULL")
        subject = Asynchronous(load, connection)
        sample = await measure(subject, load)
        settings = subject.settings | await _pragmas(connection)
    return replace(sample, settings=settings | {"synchronous_by_default": by_default})


async def _pragmas(connection: aiosqlite.Connection) -> dict[str, str]:
    """Read the settings in the thread that owns the connection."""
    raw = connection._conn
    return await connection._execute(lambda: pragmas(lambda sql: raw.execute(sql).fetchone()[0]))


async def work(load: Load) -> Sample:
    """Measure LangGraph."""
    database = load.directory / "langgraph.db"
    sample = await (_plain if load.variant == "plain" else _asynchronous)(load, str(database))
    return replace(sample, stored=count_rows(database, _STEPS), bytes=stored_bytes(load.directory))


if __name__ == "__main__":
    main(work)
