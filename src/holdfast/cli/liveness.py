"""Whether a worker still lives: whoever can take its lock knows that it does not."""

from holdfast.client.protocol import Client, WorkerInfo
from holdfast.engine.lock import is_held


def is_alive(worker: WorkerInfo) -> bool | None:
    """Say whether a worker lives; None when nothing here can tell."""
    return is_held(worker.lock_folder, worker.lock)


async def dead_runs(client: Client) -> set[str]:
    """Return the runs that are held by workers proven dead."""
    return {run for worker in await client.workers() if is_alive(worker) is False for run in worker.runs}
