"""Whether a worker still lives: whoever can take its lock knows that it does not."""

from pathlib import Path

from holdfast.client.protocol import Client, WorkerInfo
from holdfast.engine.lock import proof_of_death


def is_alive(worker: WorkerInfo) -> bool | None:
    """Say whether a worker lives; None when nothing here can tell."""
    if worker.lock is None or not Path(worker.lock).exists():
        return None
    proof = proof_of_death(worker.lock)
    if proof is None:
        return True
    proof.release()
    return False


async def dead_runs(client: Client) -> set[str]:
    """Return the runs that are held by workers proven dead."""
    return {run for worker in await client.workers() if is_alive(worker) is False for run in worker.runs}
