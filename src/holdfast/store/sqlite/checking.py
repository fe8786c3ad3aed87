"""What is wrong with a SQLite file as a whole: what SQLite finds, and what hangs together no more."""

from typing import Final

import apsw

from holdfast.core.errors import Damaged
from holdfast.core.ids import id_text
from holdfast.store.rows import read_post
from holdfast.store.sqlite.conversing import astray
from holdfast.store.sqlite.fetch import fetch

_STRAY_KEYS: Final = """
    SELECT k.key, hex(r.run) FROM hf_runs r LEFT JOIN hf_keys k ON k.tenant = r.tenant AND k.key = r.key
     WHERE r.key IS NOT NULL AND (k.run, k.name, k.digest, k.conversation)
        IS NOT (r.run, r.name, r.digest, r.conversation) LIMIT 20
"""
_STRAY_ENTRIES: Final = """
    SELECT DISTINCT run FROM hf_entries
     WHERE run NOT IN (SELECT number FROM hf_runs) AND run NOT IN (SELECT owner FROM hf_lineage) LIMIT 20
"""
_CONSUMED: Final = """
    SELECT r.run, p.seq, p.kind, p.key, p.control, p.at, p.consumed, p.enc, p.guard, p.body
      FROM hf_posts p JOIN hf_runs r ON r.number = p.run WHERE p.consumed IS NOT NULL
"""


def check(connection: apsw.Connection) -> list[str]:
    """Return what SQLite itself finds wrong with the file, and which keys and old posts are not as they were."""
    found = [row[0] for row in fetch(connection, "PRAGMA integrity_check(20)") if row[0] != "ok"]
    keys = fetch(connection, _STRAY_KEYS)
    entries = fetch(connection, _STRAY_ENTRIES)
    posts = [(id_text(run), values) for run, *values in fetch(connection, _CONSUMED)]
    found += [f"entries of run number {number} have no row" for [number] in entries]
    found += astray(connection)
    found += [f"key {key!r} of run {run} does not match the run's row" for key, run in keys]
    for run, values in posts:
        try:
            read_post(run, tuple(values))
        except Damaged as damaged:
            found.append(str(damaged))
    return found
