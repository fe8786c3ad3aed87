"""The floor under any engine: SQLite alone (variant `commit`), or a group-commit loop without an engine (`loop`).

The loop keeps what durability is made of and nothing else: the fenced update of the run's row, the chained checksum,
the digest of the input, encoding and decoding of the result, the unique (run, seq) index on an append-ordered table,
and one transaction with one fsync for all runs that have a step to record.
"""

import hashlib
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any

import apsw
import msgspec

from benchmarks.workload import Gate, Load, Sample, main, pragmas, stored_bytes

_SCHEMA = """
    CREATE TABLE runs (run INTEGER PRIMARY KEY, fence INTEGER NOT NULL, last_seq INTEGER NOT NULL, head BLOB NOT NULL);
    CREATE TABLE entries (
        run INTEGER NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, version INTEGER NOT NULL, at INTEGER NOT NULL,
        enc INTEGER NOT NULL, body BLOB NOT NULL, checksum BLOB NOT NULL
    );
    CREATE UNIQUE INDEX entries_by_run ON entries (run, seq);
"""

_ADVANCE = """
    UPDATE runs SET last_seq = last_seq + 1, head = ?
     WHERE run = ? AND fence = ? AND last_seq = ?
    RETURNING last_seq
"""

_APPEND = """
    INSERT INTO entries (run, seq, kind, version, at, enc, body, checksum) VALUES (?, ?, 'StepCompleted', 1, ?, 0, ?, ?)
"""


class Completed(msgspec.Struct, frozen=True):
    """What a step's entry holds."""

    step: str
    input: str
    value: str


@dataclass(slots=True)
class Run:
    """One run as its writer knows it."""

    number: int
    id: bytes
    fence: int
    seq: int
    head: bytes


_ENCODER = msgspec.json.Encoder()
_CANONICAL = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(Completed)


def opened(load: Load) -> apsw.Connection:
    """Open a WAL store whose every commit is on disk when it returns."""
    connection = apsw.Connection(str(load.directory / "bare.db"))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute(_SCHEMA)
    return connection


def checksum(run: Run, at: int, body: bytes) -> bytes:
    """Chain an entry to the one before it."""
    return hashlib.blake2b(
        run.id
        + (run.seq + 1).to_bytes(8, "big")
        + at.to_bytes(8, "big")
        + b"\x00\x01\x0dStepCompleted\x00"
        + run.head
        + body,
        digest_size=16,
    ).digest()


def record(connection: apsw.Connection, run: Run, payload: str) -> str:
    """Write one step of `run` into the open transaction and return its result as a replay would."""
    digest = hashlib.sha256(_CANONICAL.encode({"number": run.seq})).hexdigest()
    body = _ENCODER.encode(Completed(f"0/step#{run.seq}", digest, payload))
    value = _DECODER.decode(body).value
    at = time.time_ns() // 1000
    head = checksum(run, at, body)
    moved: Any = connection.execute(_ADVANCE, (head, run.number, run.fence, run.seq)).get
    assert moved == run.seq + 1
    connection.execute(_APPEND, (run.number, run.seq + 1, at, body, head))
    run.seq, run.head = run.seq + 1, head
    return value


def batch(connection: apsw.Connection, runs: list[Run], payload: str) -> None:
    """Record one step of every run in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for run in runs:
        record(connection, run, payload)
    connection.execute("COMMIT")


def loop(connection: apsw.Connection, load: Load, gate: Gate) -> None:
    """Record steps of all runs, batch after batch, for as long as the gate wants more."""
    payload = load.payload
    runs = [Run(number, uuid.uuid4().bytes, 1, 0, bytes(16)) for number in range(1, load.runs + 1)]
    with connection:
        connection.executemany(
            "INSERT INTO runs (run, fence, last_seq, head) VALUES (?, ?, 0, ?)",
            [(run.number, run.fence, run.head) for run in runs],
        )
    batch(connection, runs, payload)
    gate.open()
    done = 0
    while gate.more(done):
        batch(connection, runs, payload)
        done += 1
    for _ in runs:
        gate.leave(done)


def commit(connection: apsw.Connection, load: Load, gate: Gate) -> None:
    """Insert one row of the payload's size per transaction."""
    body = load.payload.encode()

    def insert(seq: int) -> None:
        connection.execute(_APPEND, (1, seq, 0, body, b""))

    insert(1)
    gate.open()
    done = 0
    while gate.more(done):
        insert(done + 2)
        done += 1
    gate.leave(done)


async def work(load: Load) -> Sample:
    """Measure the floor."""
    connection = opened(load)
    settings = pragmas(lambda sql: connection.execute(sql).get)
    gate = Gate(load)
    (commit if load.variant == "commit" else loop)(connection, load, gate)
    connection.close()
    reopened = apsw.Connection(str(load.directory / "bare.db"))
    stored: Any = reopened.execute("SELECT count(*) FROM entries").get
    reopened.close()
    return replace(gate.sample(), stored=stored, bytes=stored_bytes(load.directory), settings=settings)


if __name__ == "__main__":
    main(work)
