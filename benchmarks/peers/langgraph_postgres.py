"""LangGraph on PostgreSQL: one looping node, `durability="sync"`, a pool; on asyncio, or in threads (`plain`)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from benchmarks.peers.looping import Looping, config
from benchmarks.workload import Gate, Load, Sample, main, measure, server_settings

_STEPS = "SELECT count(*) FROM checkpoints WHERE (metadata->>'step')::int > 0"
"""Checkpoint -1 holds a run's input and checkpoint 0 its start; each later one is a step that was made."""
_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""What the saver asks of a connection that it did not open itself."""


class Asynchronous:
    """`ainvoke` over `AsyncPostgresSaver`."""

    def __init__(self, load: Load, saver: AsyncPostgresSaver) -> None:
        self._loop = Looping(load.payload)
        self._graph = self._loop.compile(self._loop.step, saver)

    async def run(self, gate: Gate) -> None:
        self._loop.gate = gate
        gate.leave((await self._invoke())["done"] - 1)

    async def once(self) -> None:
        await self._invoke()

    async def _invoke(self) -> Any:
        return await self._graph.ainvoke({"done": 0, "result": ""}, config(), durability="sync")


class Plain:
    """`invoke` over `PostgresSaver`, a thread for each run."""

    def __init__(self, load: Load, saver: PostgresSaver) -> None:
        self._threads = ThreadPoolExecutor(max_workers=load.runs) if load.runs > 1 else None
        self._loop = Looping(load.payload)
        self._graph = self._loop.compile(self._loop.step_in_thread, saver)

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


async def _asynchronous(load: Load) -> Sample:
    async with AsyncConnectionPool(load.address, min_size=1, max_size=load.runs, kwargs=_OPTIONS) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        return await measure(Asynchronous(load, saver), load)


async def _plain(load: Load) -> Sample:
    with ConnectionPool(load.address, min_size=1, max_size=load.runs, kwargs=_OPTIONS) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        return await measure(Plain(load, saver), load)


async def work(load: Load) -> Sample:
    """Measure LangGraph."""
    sample = await (_plain if load.variant == "plain" else _asynchronous)(load)
    with psycopg.connect(load.address) as connection:
        (stored,) = connection.execute(_STEPS).fetchone() or (0,)
        settings = server_settings(lambda sql: connection.execute(sql.encode()).fetchone())
    return replace(sample, stored=stored, settings=settings | {"durability": "sync"})


if __name__ == "__main__":
    main(work)
