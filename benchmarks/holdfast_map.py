"""Holdfast's `ctx.map`: under an `hf.Limit` that all workers share, or (`bounded`) with a bound of the map's own."""

from dataclasses import replace

import holdfast as hf
from benchmarks.holdfast_steps import count_apart, count_on_server
from benchmarks.mapping import Clock, Order, Result, Work, check, main


async def mapped(order: Order) -> Result:
    """Map a step over all items in one run."""
    work = Work()
    limit = hf.Limit("map", at_once=order.at_once)

    async def double(item: int) -> int:
        return await work(item)

    @hf.durable
    async def fan_out(ctx: hf.Context, items: int) -> list[int]:
        if order.variant == "bounded":
            return await ctx.map(double, range(items), at_once=order.at_once)
        return await ctx.map(double, range(items), limit=limit)

    database = order.directory / "holdfast.db"
    async with hf.open(order.address or f"sqlite:///{database}", hf.App(fan_out, version="benchmark")) as runtime:
        clock = Clock()
        check(await runtime.run(fan_out, order.items), order.items)
        result = clock.result(work)
    stored = count_on_server(order.address) if order.address else count_apart(database)
    return replace(result, stored=stored)


if __name__ == "__main__":
    main(mapped)
