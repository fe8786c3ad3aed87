"""Versions of code in a SQLite store: which there are, and in which order they came."""

from collections.abc import Sequence
from typing import Final

import apsw

from holdfast.core.version import CodeVersion
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import Row, fetch

_VERSIONS: Final = "SELECT name, code, source, place FROM hf_versions WHERE name = ? ORDER BY place"
_ENROL: Final = """
    INSERT INTO hf_versions (name, code, source, registered_at) VALUES (?, ?, ?, ?) ON CONFLICT (name, code) DO NOTHING
"""
Known = dict[tuple[str, str], CodeVersion]


def versions(connection: apsw.Connection, name: str) -> list[CodeVersion]:
    """Return every version of a name's code, in the order in which they came."""
    return [_version(row) for row in fetch(connection, _VERSIONS, (name,))]


def enrol(db: Db, versions: Sequence[CodeVersion], at: int) -> Known:
    """Add the versions that are not known, and return all of these names."""
    for new in versions:
        db.rows(_ENROL, (new.name, new.code, new.source, at))
    known = [_version(row) for name in {new.name for new in versions} for row in db.rows(_VERSIONS, (name,))]
    return {(version.name, version.code): version for version in known}


def _version(row: Row) -> CodeVersion:
    name, code, source, place = row
    return CodeVersion(name=name, code=code, source=source, place=place)
