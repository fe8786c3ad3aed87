"""Holdfast itself, through its public names: trivial asynchronous `repeat` steps, on SQLite or at an address."""

import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import apsw
import psycopg

import holdfast as hf
from benchmarks.workload import JOINT, Gate, Load, Sample, main, measure, pragmas, stored_bytes

_COUNT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM hf_entries WHERE kind = 'StepCompleted'").fetchone()[0])
"""


class Holdfast:
    """A runtime opened on an empty store with the defaults, but for as many runs at once as asked."""

    def __init__(self, load: Load) -> None:
        self._gate: Gate | None = None
        payload = load.payload

        async def work(number: int) -> str:
            return payload

        @hf.durable
        async def steps(ctx: hf.Context) -> int:
            gate = self._gate
            assert gate is not None
            await ctx.step(work, -1)
            await gate.arrive()
            done = 0
            while gate.more(done):
                await ctx.step(work, done)
                done += 1
            gate.leave(done)
            return done

        @hf.durable
        async def one(ctx: hf.Context) -> str:
            return await ctx.step(work, 0)

        self._steps, self._one = steps, one
        self.app = hf.App(steps, one, version="benchmark")
        self.runtime: hf.Runtime | None = None

    async def run(self, gate: Gate) -> None:
        assert self.runtime is not None
        self._gate = gate
        run = await self.runtime.start(self._steps)
        await run.result()

    async def once(self) -> None:
        assert self.runtime is not None
        run = await self.runtime.start(self._one)
        await run.result()


def count_apart(database: Path) -> int:
    """Count stored steps in another process, because a second copy of SQLite must not touch the store in this one."""
    answer = subprocess.run([sys.executable, "-c", _COUNT, str(database)], capture_output=True, text=True, check=True)
    return int(answer.stdout)


class Connections:
    """Sees every connection that the process opens, so that what Holdfast ran at is read and not assumed."""

    def __init__(self) -> None:
        self._opened: list[weakref.ref[apsw.Connection]] = []
        apsw.connection_hooks.append(lambda connection: self._opened.append(weakref.ref(connection)))

    def settings(self) -> dict[str, str]:
        """Return what the connections that may write are set to, all ways of it where they differ."""
        alive = [connection for one in self._opened if (connection := one()) is not None]
        found = [
            pragmas(lambda sql, writing=one: writing.execute(sql).get)  # type: ignore[misc]
            for one in alive
            if not one.pragma("query_only")
        ]
        return {name: " and ".join(sorted({one[name] for one in found})) for name in (found[0] if found else {})}


def count_on_server(address: str) -> int:
    """Count stored steps through a fresh connection."""
    with psycopg.connect(address) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM holdfast.hf_entries WHERE kind = 'StepCompleted'")
    return int(count)


async def work(load: Load) -> Sample:
    """Measure Holdfast."""
    connections = Connections()
    database = load.directory / "holdfast.db"
    subject = Holdfast(load)
    where = load.address or f"sqlite:///{database}"
    async with hf.open(where, subject.app, concurrency=max(64, load.runs)) as runtime:
        subject.runtime = runtime
        sample = await measure(subject, load)
        settings = connections.settings() | {"effect": "repeat"}
    if load.variant == JOINT:
        return sample  # others still write: whoever started all of them counts
    stored = count_on_server(load.address) if load.address else count_apart(database)
    return replace(sample, stored=stored, bytes=stored_bytes(load.directory), settings=settings)


if __name__ == "__main__":
    main(work)
