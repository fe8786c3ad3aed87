"""Absurd: one asynchronous worker on one connection, as its SDK has it, or threads with a connection each (`plain`)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
from absurd_sdk import Absurd, AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.workload import Gate, Load, Sample, main, measure, server_settings

_QUEUE = "benchmark"
_STORED = f"SELECT count(*) FROM absurd.c_{_QUEUE}"


class Asynchronous:
    """One client: all tasks are spawned, then its worker is started with room for all of them."""

    def __init__(self, load: Load) -> None:
        self._client = AsyncAbsurd(load.address, queue_name=_QUEUE)
        self._load, self._gate = load, Gate(load)
        self._spawned = 0
        self._working: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self._left = load.runs
        payload = load.payload

        async def work() -> str:
            return payload

        @self._client.register_task(name="steps")
        async def steps(params: Any, ctx: Any) -> int:
            gate = self._gate
            await ctx.step("step", work)
            await gate.arrive()
            done = 0
            while gate.more(done):
                await ctx.step("step", work)
                done += 1
            gate.leave(done)
            self._left -= 1
            if self._left == 0:
                self._done.set()
            return done

        @self._client.register_task(name="one")
        async def one(params: Any, ctx: Any) -> str:
            result: str = await ctx.step("step", work)
            return result

    async def run(self, gate: Gate) -> None:
        self._gate = gate
        await self._client.spawn("steps", {})
        self._spawned += 1
        if self._spawned == self._load.runs:
            # A worker claims no second batch before it is done with the first.
            self._working = asyncio.create_task(self._client.start_worker(concurrency=self._load.runs))
        await self._done.wait()

    async def once(self) -> None:
        task = await self._client.spawn("one", {})
        await self._client.work_batch()
        await self._client.await_task_result(str(task["task_id"]))

    async def close(self) -> None:
        self._client.stop_worker()
        if self._working is not None:
            await self._working
        await self._client.close()


class Plain:
    """A client for each run, in a thread of its own: the way in which runs at once do not wait for one connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(max_workers=load.runs)
        self._alone = self._client(None)

    def _client(self, gate: Gate | None) -> Absurd:
        client = Absurd(self._load.address, queue_name=_QUEUE)
        payload = self._load.payload

        @client.register_task(name="steps")
        def steps(params: Any, ctx: Any) -> int:
            assert gate is not None
            ctx.step("step", lambda: payload)
            gate.arrive_in_thread()
            done = 0
            while gate.more(done):
                ctx.step("step", lambda: payload)
                done += 1
            gate.leave(done)
            return done

        @client.register_task(name="one")
        def one(params: Any, ctx: Any) -> str:
            return str(ctx.step("step", lambda: payload))

        return client

    async def run(self, gate: Gate) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._run, gate)

    def _run(self, gate: Gate) -> None:
        client = self._client(gate)
        try:
            client.spawn("steps", {})
            while not (tasks := client.claim_tasks()):
                pass
            client._execute_task(tasks[0], 120)
        finally:
            client.close()

    async def once(self) -> None:
        task = self._alone.spawn("one", {})
        self._alone.work_batch()
        self._alone.await_task_result(str(task["task_id"]))

    async def close(self) -> None:
        self._threads.shutdown()
        self._alone.close()


async def work(load: Load) -> Sample:
    """Measure Absurd."""
    with psycopg.connect(load.address, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL.encode())
        connection.execute("SELECT absurd.create_queue(%s)", [_QUEUE])
    subject = Plain(load) if load.variant == "plain" else Asynchronous(load)
    sample = await measure(subject, load)
    await subject.close()
    with psycopg.connect(load.address) as connection:
        (stored,) = connection.execute(_STORED).fetchone() or (0,)
        settings = server_settings(lambda sql: connection.execute(sql.encode()).fetchone())
    return replace(sample, stored=stored, settings=settings)


if __name__ == "__main__":
    main(work)
