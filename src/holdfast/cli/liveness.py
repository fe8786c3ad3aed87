"""Whether a worker still lives, as its lock tells."""

from holdfast.client.protocol import Client, WorkerInfo


def is_alive(worker: WorkerInfo) -> bool | None:
    """Say whether a worker lives; None when nothing here can tell."""
    return {"held": True, "free": False}.get(worker.lock)


async def dead_runs(client: Client) -> set[str]:
    """Return the runs that are held by workers proven dead."""
    return {run for worker in await client.workers() if is_alive(worker) is False for run in worker.runs}
