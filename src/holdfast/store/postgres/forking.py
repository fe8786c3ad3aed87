"""Forks on PostgreSQL: a run whose journal begins with another's entries, by reference."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core.ids import RunId, id_bytes, id_text
from holdfast.store import point
from holdfast.store.postgres.arrays import Id, Ids
from holdfast.store.postgres.connection import Async, transaction
from holdfast.store.postgres.reading import Reader
from holdfast.store.postgres.rich import BEHIND, OPEN_ACCOUNT, POST, TAKE_TURN, post_values
from holdfast.store.rows import FIXED, MOVING, SELECT, first_row, fixed_of, guard, moving_of, read_row, seal
from holdfast.store.value import BaseMoved, Created, Existing, Forked, NewFork, NewRun, RunRow

Row = tuple[Any, ...]
_ROW: Final = SELECT + "WHERE r.run = $1"
_LOCK: Final = _ROW + " FOR UPDATE OF r"
_LAST: Final = "NOT EXISTS (SELECT 1 FROM hf_lineage n WHERE n.run = l.run AND n.up_to > l.up_to)"
_SHARES: Final = "SELECT up_to, owner, base FROM hf_lineage WHERE run = $1 ORDER BY up_to"
_STANDS: Final = "SELECT checksum FROM hf_entries WHERE run = $1 AND seq = $2"
_OF_WORD: Final = f"""
    SELECT r.run FROM hf_lineage l JOIN hf_runs r ON r.number = l.run
     WHERE l.owner = $1 AND l.word = $2::text AND {_LAST}
"""
_INSERT: Final = (
    f"INSERT INTO hf_runs ({FIXED}, {MOVING}, guard) "
    f"VALUES ({', '.join(f'${n}' for n in range(1, FIXED.count(',') + MOVING.count(',') + 4))})"
)
_SHARE: Final = "INSERT INTO hf_lineage (run, up_to, owner, base, word) VALUES ($1, $2, $3, $4, $5)"
_ENTRY: Final = """
    INSERT INTO hf_entries (run, seq, kind, version, at, enc, body, checksum) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
_UNNAME: Final = "UPDATE hf_runs SET key = NULL, guard = $1 WHERE number = $2"
_MOVE_KEY: Final = "UPDATE hf_keys SET run = $1 WHERE tenant = $2 AND key = $3"
_FORKED: Final = f"""
    SELECT r.run, l.base, l.up_to, l.word FROM hf_lineage l JOIN hf_runs r ON r.number = l.run
     WHERE l.owner = (SELECT number FROM hf_runs WHERE run = $1) AND {_LAST} ORDER BY r.run
"""
_FORKS: Final = f"""
    SELECT r.run, l.base, l.up_to, l.word FROM hf_runs r JOIN hf_lineage l ON l.run = r.number
     WHERE r.run = ANY($1) AND {_LAST}
"""


class Forking:
    """The creation of one fork, which may be asked for again when its answer was lost."""

    def __init__(self, reader: Reader, new: NewFork, number: int) -> None:
        self._reader, self._new = reader, new
        self._row = first_row(NewRun(row=new.row, first=new.first), number, claimed=False)

    async def __call__(self, connection: Async) -> Created | Existing | BaseMoved:
        """Do it in one transaction: lock the base, look at it, write."""
        new = self._new
        async with transaction(connection):
            if found := await self._ask(connection, _ROW, Id(id_bytes(new.row.run))):
                return Created(read_row(found[0]), None)  # by an earlier try
            # Locked, so that of two who ask under one word the second finds what the first made.
            found = await self._ask(connection, _LOCK, Id(id_bytes(new.base)))
            base = read_row(found[0]) if found else None
            if base is None or base.damage:
                return BaseMoved()
            at = new.first.seq - 1
            shares = await self._ask(connection, _SHARES, base.number)
            owner, owner_id = next(
                ((of, raw) for up_to, of, raw in shares if at <= up_to), (base.number, id_bytes(base.run))
            )
            if await self._ask(connection, _STANDS, owner, at) != [(new.previous,)]:
                return BaseMoved()
            known = await self._ask(connection, _OF_WORD, owner, new.word) if new.word is not None else []
            if known:
                [values] = await self._ask(connection, _ROW, Id(known[0][0]))
                return Existing(id_text(known[0][0]), read_row(values))
            point.reached("before")
            if new.row.conversation is not None:
                values = (new.row.tenant, new.row.conversation, self._row.number)
                [(turn, behind)] = await self._ask(connection, TAKE_TURN, *values)
                self._row = replace(self._row, turn=turn, behind=bool(behind))
            await self._write(connection, base, [share for share in shares if share[0] < at], (at, owner, owner_id))
        point.reached("after")
        return Created(self._row, None)

    async def _write(self, connection: Async, base: RunRow, shares: Sequence[Row], last: Row) -> None:
        new, row = self._new, self._row
        fixed, moving = fixed_of(row), moving_of(row)
        values = list(fixed)
        for place in (1, 9, 10):
            values[place] = Id(fixed[place]) if fixed[place] is not None else None
        async with connection.pipeline():
            if row.key is not None:
                unnamed = replace(base, key=None)
                crc = guard(seal(fixed_of(unnamed)), moving_of(unnamed))
                await self._do(connection, _UNNAME, crc, base.number)
                await self._do(connection, _MOVE_KEY, Id(id_bytes(row.run)), row.tenant, row.key)
            await self._do(connection, _INSERT, *values, *moving, guard(seal(fixed), moving))
            for up_to, of, raw in shares:
                await self._do(connection, _SHARE, row.number, up_to, of, Id(raw), None)
            if row.behind:
                await self._do(connection, BEHIND, row.number)
            up_to, of, raw = last
            await self._do(connection, _SHARE, row.number, up_to, of, Id(raw), new.word)
            await self._do(connection, _ENTRY, row.number, *new.first)
            for move in new.budget:
                await self._do(connection, OPEN_ACCOUNT, row.number, move.channel, move.total)
            if new.posts:
                await self._do(connection, POST, *post_values(new.posts, new.first.at))

    async def _ask(self, connection: Async, statement: str, *values: Any) -> list[Row]:
        return await (await connection.execute(self._reader.names(statement), list(values), binary=True)).fetchall()

    async def _do(self, connection: Async, statement: str, *values: Any) -> None:
        await connection.execute(self._reader.names(statement), list(values))


async def forks(reader: Reader, runs: Sequence[RunId]) -> Mapping[RunId, Forked]:
    """Return where those of these runs begin that are forks."""
    return _read(await reader.rows(_FORKS, [Ids([id_bytes(run) for run in runs])]))


async def forked(reader: Reader, run: RunId) -> Mapping[RunId, Forked]:
    """Return the forks of a run, the oldest first."""
    return _read(await reader.rows(_FORKED, [Id(id_bytes(run))]))


def _read(rows: Sequence[Row]) -> Mapping[RunId, Forked]:
    return {id_text(run): Forked(id_text(base), at, word) for run, base, at, word in rows}
