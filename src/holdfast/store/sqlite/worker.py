"""The workers of a SQLite store: their rows, and what those say."""

from collections.abc import Mapping
from typing import Final

import apsw
import msgspec

from holdfast.core.ids import WorkerId, is_id
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import Row, fetch
from holdfast.store.value import WorkerRow

_WORKERS: Final = """
    SELECT w.number, w.worker, w.pulse, w.started_at, w.lock, count(r.number), w.about, w.beat_at FROM hf_workers w
      LEFT JOIN hf_runs r ON r.owner = w.number GROUP BY w.number ORDER BY w.number
"""
_REGISTER: Final = """
    INSERT INTO hf_workers (worker, pulse, started_at, lock, about, beat_at) VALUES (?, 0, ?, ?, ?, ?)
        ON CONFLICT (worker) DO UPDATE SET about = excluded.about
"""
_BEAT: Final = "UPDATE hf_workers SET pulse = pulse + 1, beat_at = ? WHERE worker = ?"
_ABOUT: Final = msgspec.json.Decoder(dict[str, str])


def register(db: Db, worker: WorkerId, lock: str | None, about: Mapping[str, str], at: int) -> int | None:
    """Write who a worker is, or what it says of itself by now; return its number."""
    db.rows(_REGISTER, (worker, at, lock, msgspec.json.encode(about).decode(), at))
    return db.worker_number(worker)


def beat(db: Db, worker: WorkerId, at: int) -> bool:
    """Write that a worker is there; False when it has no row any more."""
    return db.changed(_BEAT, (at, worker)) == 1


def workers(connection: apsw.Connection) -> tuple[list[WorkerRow], list[int]]:
    """Return the workers, and the numbers of rows that damage has made nobody's."""
    rows = fetch(connection, _WORKERS)
    return [_worker_row(row) for row in rows if is_id(row[1])], [row[0] for row in rows if not is_id(row[1])]


def _worker_row(values: Row) -> WorkerRow:
    """Return a worker's row; what damage made of it that cannot be read is left out, and proves nothing."""
    _, worker, pulse, started_at, lock, leases, said, beat_at = values
    try:
        about = _ABOUT.decode(said)
    except (msgspec.DecodeError, TypeError):
        about = {}
    return WorkerRow(worker, pulse, started_at, lock if isinstance(lock, str) else None, leases, about, beat_at)
