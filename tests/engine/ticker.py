"""A process with a schedule whose clock its parent moves: `python -m tests.engine.ticker PATH MICROSECONDS`.

It says `seen` when its store knows the schedule, and `about to start` when it is about to create the run of a tick,
which it then never does; each line that it reads moves its clock on by as many seconds.
"""

import asyncio
import sys
from typing import Any

import holdfast as hf
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import NewRun
from holdfast.testing import MovingClock
from tests.rigs.waiting import until


@hf.durable
async def report(ctx: hf.Context) -> str:
    """Be done."""
    return "done"


def hourly(missed: Any = "skip") -> hf.App:
    """Return an app whose `report` runs at every full hour."""
    app = hf.App()
    app.schedule(report, "@hourly", missed=missed)
    return app


class Halting(SqliteStore):
    """Stops for ever where the run of a tick would be created."""

    async def create(self, new: NewRun, **rest: Any) -> Any:
        """Create anything else."""
        if new.row.name == "report":
            print("about to start", flush=True)
            await asyncio.Event().wait()
        return await super().create(new, **rest)


async def main(path: str, now: int) -> None:
    """Serve until killed."""
    clock = MovingClock(now)
    async with hf.open(await Halting.open(path, clock=clock), hourly()) as runtime:

        async def is_known() -> bool:
            return bool(await runtime.runs(name="holdfast:schedule", status="completed"))

        await until(is_known)
        print("seen", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            clock.advance(float(line))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
