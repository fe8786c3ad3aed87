"""The loop that simulations run on: its time jumps, its processes die as one, and its seed decides."""

import asyncio

import pytest

from tests.simulation.loop import Idle, SeededLoop


def test_time_jumps_to_what_is_due() -> None:
    """A day's sleep takes no time at all, and is a day."""
    loop = SeededLoop("a")
    loop.run_until_complete(asyncio.sleep(86_400))
    assert 86_400 <= loop.time() < 86_401
    loop.bury()


def test_callbacks_of_one_process_keep_their_order() -> None:
    """What asyncio promises to code on one loop holds in each process."""
    loop = SeededLoop("b")
    seen: dict[str, list[int]] = {"one": [], "other": []}

    async def count(name: str) -> None:
        for number in range(50):
            asyncio.get_running_loop().call_soon(seen[name].append, number)
            await asyncio.sleep(0)

    tasks = [loop.start(loop.process(name), count(name)) for name in seen]
    loop.run_until_complete(asyncio.wait(tasks))
    assert seen == {"one": list(range(50)), "other": list(range(50))}
    loop.bury()


def test_processes_go_on_in_an_order_that_the_seed_decides() -> None:
    """The same seed gives the same order, another one another."""

    def order(seed: str) -> list[str]:
        loop, seen = SeededLoop(seed), list[str]()

        async def turn(name: str) -> None:
            for _ in range(20):
                seen.append(name)
                await asyncio.sleep(0)

        tasks = [loop.start(loop.process(name), turn(name)) for name in ("a", "b", "c")]
        loop.run_until_complete(asyncio.wait(tasks))
        loop.bury()
        return seen

    assert order("one") == order("one")
    assert order("one") != order("other")


def test_a_killed_process_runs_nothing_more() -> None:
    """Not even its `finally` blocks, until all is judged."""
    loop, seen = SeededLoop("c"), list[str]()
    process = loop.process("victim")

    async def live() -> None:
        try:
            await asyncio.sleep(1)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    _ = loop.start(process, live())
    loop.run_until_complete(asyncio.sleep(0.5))
    loop.kill(process)
    loop.run_until_complete(asyncio.sleep(10))
    assert seen == []
    loop.bury()
    assert seen == ["cleaned up"]


def test_a_frozen_process_goes_on_when_it_thaws() -> None:
    """Meanwhile time passes for everybody else."""
    loop, seen = SeededLoop("d"), list[float]()
    process = loop.process("sleeper")

    async def live() -> None:
        await asyncio.sleep(1)
        seen.append(loop.time())

    _ = loop.start(process, live())
    loop.freeze(process, 5)
    loop.run_until_complete(asyncio.sleep(4))
    assert seen == []
    loop.run_until_complete(asyncio.sleep(4))
    assert seen[0] >= 5
    loop.bury()


def test_a_play_that_nothing_can_end_is_told() -> None:
    """A loop on which everybody waits for nobody does not wait with them."""
    loop = SeededLoop("e")
    with pytest.raises(Idle):
        loop.run_until_complete(loop.create_future())
    loop.bury()
