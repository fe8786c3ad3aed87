"""durabl: plain functions, a connection per thread, and `ModelCall` as the step: two commits, a tool call has three."""

import asyncio
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from durabl import ModelCall, Runtime
from durabl.workflow import define

from benchmarks.workload import Gate, Load, Sample, count_rows, main, measure, pragmas, stored_bytes

_COMPLETED = "SELECT count(*) FROM events WHERE kind = 'STEP_COMPLETED'"


class Durabl:
    """durabl at synchronous=FULL; runs at once are threads, each with its own runtime on the same file."""

    def __init__(self, load: Load) -> None:
        self._payload = load.payload
        self._database = str(load.directory / "durabl.db")
        self._threads = ThreadPoolExecutor(max_workers=load.runs)
        self._alone = self._open()
        self.settings = pragmas(lambda sql: self._alone.store._conn.execute(sql).fetchone()[0])
        self.settings["step"] = "ModelCall"

    def _open(self) -> Runtime:
        return Runtime(db=self._database, synchronous="FULL", llm=lambda prompt: self._payload)

    async def run(self, gate: Gate) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._run, gate)

    def _run(self, gate: Gate) -> None:
        def steps(ctx: Any) -> Generator[ModelCall, str, int]:
            yield ModelCall("first")
            gate.arrive_in_thread()
            done = 0
            while gate.more(done):
                yield ModelCall(str(done))
                done += 1
            gate.leave(done)
            return done

        with self._open() as runtime:
            runtime.run(define("steps", steps))

    async def once(self) -> None:
        def one(ctx: Any) -> Generator[ModelCall, str, str]:
            return (yield ModelCall("only"))

        assert self._alone.run(define("one", one)).result == self._payload

    def close(self) -> None:
        self._threads.shutdown()
        self._alone.close()


async def work(load: Load) -> Sample:
    """Measure durabl."""
    subject = Durabl(load)
    sample = await measure(subject, load)
    subject.close()
    stored = count_rows(Path(load.directory / "durabl.db"), _COMPLETED)
    return replace(sample, stored=stored, bytes=stored_bytes(load.directory), settings=subject.settings)


if __name__ == "__main__":
    main(work)
