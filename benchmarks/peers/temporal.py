"""Temporal: the dev server from its package, on a file on the same disk, with activities as steps."""

import os
import sys
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.workload import Gate, Load, Sample, main, measure, stored_bytes

_QUEUE = "benchmark"
_LIMIT = timedelta(minutes=5)
_SERVER = Path(sys.executable).with_name("temporal")


class Shared:
    """What workflows and activities of this process have in common with the measurement."""

    payload = ""
    gate: Gate | None = None


@activity.defn
async def step(number: int) -> str:
    """The step."""
    return Shared.payload


@activity.defn
async def arrive() -> None:
    """Wait at the gate, which a workflow may not do by itself."""
    assert Shared.gate is not None
    await Shared.gate.arrive()


@workflow.defn
class Steps:
    """Steps while the gate wants more; the clock is read in place, since no workflow here is ever replayed."""

    @workflow.run
    async def run(self) -> int:
        """Make the steps."""
        gate = Shared.gate
        assert gate is not None
        await workflow.execute_activity(step, -1, start_to_close_timeout=_LIMIT)
        await workflow.execute_activity(arrive, start_to_close_timeout=_LIMIT)
        done = 0
        while gate.more(done):
            await workflow.execute_activity(step, done, start_to_close_timeout=_LIMIT)
            done += 1
        gate.leave(done)
        return done


@workflow.defn
class One:
    """A single step."""

    @workflow.run
    async def run(self) -> str:
        """Make it."""
        return await workflow.execute_activity(step, 0, start_to_close_timeout=_LIMIT)


class Temporal:
    """Workflows started by a client and worked on in this process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waits = 0

    async def run(self, gate: Gate) -> None:
        Shared.gate = gate
        self._waits += 1
        await self._client.execute_workflow(Steps.run, id=str(uuid.uuid4()), task_queue=_QUEUE)

    async def once(self) -> None:
        await self._client.execute_workflow(One.run, id=str(uuid.uuid4()), task_queue=_QUEUE)

    async def stored(self) -> int:
        """Count the activities that the server has as completed, but for the waits at the gate."""
        completed = 0
        async for one in self._client.list_workflows():
            async for event in self._client.get_workflow_handle(one.id).fetch_history_events():
                completed += event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        return completed - self._waits


async def work(load: Load) -> Sample:
    """Measure Temporal."""
    Shared.payload = load.payload
    database = str(load.directory / "temporal.db")
    server = {"dev_server_existing_path": str(_SERVER), "dev_server_log_level": "error"}
    async with await WorkflowEnvironment.start_local(dev_server_database_filename=database, **server) as environment:
        subject = Temporal(environment.client)
        worker = Worker(
            environment.client,
            task_queue=_QUEUE,
            workflows=[Steps, One],
            activities=[step, arrive],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_workflow_tasks=max(100, load.runs),
            max_concurrent_activities=max(100, load.runs),
        )
        async with worker:
            sample = await measure(subject, load)
        stored = await subject.stored()
    return replace(sample, stored=stored, bytes=stored_bytes(load.directory), settings={"server": "dev server, SQLite"})


if __name__ == "__main__":
    main(work)
    # Its SDK's own threads outlive the loop, and were seen to bring the interpreter down while it leaves.
    os._exit(0)
