"""Restate: `ctx.run_typed` for each item in one handler, so many at once; it has no bound that handlers share."""

import asyncio
from collections import deque
from dataclasses import replace
from typing import Any

import httpx
import restate

from benchmarks.mapping import Clock, Order, Result, Work, check, main
from benchmarks.peers.restate import Server, served, stored_runs


def service(order: Order, work: Work) -> restate.Service:
    """Return the service that fans out."""
    fanning = restate.Service("benchmark")

    async def double(item: int) -> int:
        return await work(item)

    @fanning.handler()
    async def fan_out(ctx: restate.Context, items: int) -> list[int]:
        results: list[int] = []
        under_way: deque[Any] = deque()
        for item in range(items):
            if len(under_way) == order.at_once:
                results.append(await under_way.popleft())
            under_way.append(ctx.run_typed("double", double, item=item))
        return results + [await one for one in under_way]

    return fanning


async def mapped(order: Order) -> Result:
    """Fan out over all items in one invocation."""
    work = Work()
    server = Server(order.directory)
    try:
        async with httpx.AsyncClient(timeout=600) as http, served(service(order, work)) as handlers:
            await server.wait_ready(http)
            (await http.post(f"{server.admin}/deployments", json={"uri": handlers})).raise_for_status()
            clock = Clock()
            answer = await http.post(f"{server.ingress}/benchmark/fan_out", json=order.items)
            check(answer.raise_for_status().json(), order.items)
            result = clock.result(work)
            stored = await stored_runs(http, server)
    finally:
        await asyncio.to_thread(server.stop)
    return replace(result, stored=stored)


if __name__ == "__main__":
    main(mapped)
