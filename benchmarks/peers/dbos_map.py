"""DBOS: a workflow that enqueues one for each item, on a queue with a bound for all executors, and gathers them."""

import asyncio
from dataclasses import replace

import psycopg
from dbos import DBOS, DBOSConfig

from benchmarks.mapping import Clock, Order, Result, Work, check, main
from benchmarks.peers.dbos import Connections
from benchmarks.workload import count_rows

_POLL_SECONDS = 0.01
"""Its default of a second would let no more than the bound go on in a second."""
_DONE = "SELECT count(*) FROM {} WHERE status = 'SUCCESS' AND queue_name = 'map'"


async def mapped(order: Order) -> Result:
    """Enqueue and gather all items in one workflow."""
    work = Work()
    database = order.directory / "dbos.db"
    if not order.address:
        Connections(wal=True)
    config: DBOSConfig = {
        "name": "benchmark",
        "system_database_url": order.address or f"sqlite:///{database}",
        "log_level": "ERROR",
    }
    DBOS(config=config)

    @DBOS.workflow()
    async def double(item: int) -> int:
        return await work(item)

    @DBOS.workflow()
    async def fan_out(items: int) -> list[int]:
        handles = [await DBOS.enqueue_workflow_async("map", double, item) for item in range(items)]
        return [await handle.get_result() for handle in handles]

    DBOS.launch()
    await DBOS.register_queue_async("map", global_concurrency=order.at_once, polling_interval_sec=_POLL_SECONDS)
    clock = Clock()
    check(await fan_out(order.items), order.items)
    result = clock.result(work)
    await asyncio.to_thread(DBOS.destroy)
    if not order.address:
        return replace(result, stored=count_rows(database, _DONE.format("workflow_status")))
    with psycopg.connect(order.address) as connection:
        (stored,) = connection.execute(_DONE.format("dbos.workflow_status").encode()).fetchone() or (0,)
    return replace(result, stored=stored)


if __name__ == "__main__":
    main(mapped)
