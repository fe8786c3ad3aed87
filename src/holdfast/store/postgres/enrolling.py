"""Versions of code in a PostgreSQL store: which there are, and in which order they came."""

from collections.abc import Sequence
from typing import Final

from holdfast.core.version import CodeVersion
from holdfast.store.postgres.arrays import Texts
from holdfast.store.postgres.opening import MICROS
from holdfast.store.postgres.reading import Reader

_VERSIONS: Final = "SELECT name, code, source, place FROM hf_versions WHERE name = ANY($1) ORDER BY place"
_ENROL: Final = f"""
    INSERT INTO hf_versions (name, code, source, registered_at)
    SELECT v.name, v.code, v.source, coalesce($4::bigint, {MICROS})
      FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS v(name, code, source, nth) ORDER BY v.nth
    ON CONFLICT (name, code) DO NOTHING
"""


async def versions(reader: Reader, names: Sequence[str]) -> list[CodeVersion]:
    """Return every version of the code of some names, in the order in which they came."""
    rows = await reader.rows(_VERSIONS, [Texts(names)])
    return [CodeVersion(name=name, code=code, source=source, place=place) for name, code, source, place in rows]


async def enrol(reader: Reader, asked: Sequence[CodeVersion], now: int | None) -> list[CodeVersion]:
    """Add the versions that are not known, and return all with their places; who knows them all writes nothing."""
    names = list({version.name for version in asked})
    known = {(version.name, version.code): version for version in await versions(reader, names)}
    new = [version for version in asked if (version.name, version.code) not in known]
    if new:
        columns = [Texts([getattr(version, column) for version in new]) for column in ("name", "code", "source")]
        await reader.rows(_ENROL, [*columns, now])
        known |= {(version.name, version.code): version for version in await versions(reader, names)}
    return [known[version.name, version.code] for version in asked]
