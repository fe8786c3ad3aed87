"""Flipping bits in the rows of a closed store, by SQL from outside Holdfast."""

import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.store.rows import FIXED, MOVING, guard, seal

_INTEGER_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Flip:
    """One changed value: where it stands and what stands there now."""

    table: str
    where: tuple[tuple[str, Any], ...]
    column: str
    how: str
    sql: str
    """An expression for the new value, with one parameter or none."""
    value: Any = None

    def __str__(self) -> str:
        place = ", ".join(f"{name} {value!r}" for name, value in self.where)
        return f"{self.table}.{self.column} of {place}: {self.how}"

    def apply(self, path: Path) -> bool:
        """Change the store at `path`, which nobody has open; False if a constraint of the schema forbids it."""
        condition = " AND ".join(f"{name} IS ?" for name, _ in self.where)
        parameters = ([self.value] if "?" in self.sql else []) + [value for _, value in self.where]
        try:
            change(path, f"UPDATE {self.table} SET {self.column} = {self.sql} WHERE {condition}", parameters)
        except (sqlite3.IntegrityError, sqlite3.DataError):
            return False
        return True


def change(path: Path, sql: str, parameters: Any = ()) -> None:
    """Run one statement that must change exactly one row."""
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(sql, parameters).rowcount == 1, sql


def reseal(path: Path, number: int) -> None:
    """Give a run's row the CRC that its columns ask for, as an attacker or a mistaken repair would."""
    columns = f"{FIXED}, {MOVING}"
    [row] = query(path, f"SELECT {columns} FROM hf_runs WHERE number = ?", [number])
    fixed = FIXED.count(",") + 1
    change(path, "UPDATE hf_runs SET guard = ? WHERE number = ?", [guard(seal(row[:fixed]), row[fixed:]), number])


def query(path: Path, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
    """Return a query's rows."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql, parameters).fetchall()


def flips(path: Path, table: str, chance: random.Random, bits: int) -> Iterator[Flip]:
    """Yield changes of every column of every row of `table`: `bits` single bits each, and one change of type."""
    described = query(path, f"SELECT name, pk FROM pragma_table_info('{table}')")
    columns, keys = [name for name, _ in described], [name for name, pk in described if pk] or ["rowid"]
    shown = ", ".join(f"typeof({column}), CAST({column} AS BLOB)" for column in columns)
    rows = query(path, f"SELECT {', '.join(keys)}, {shown} FROM {table}")
    for row in rows:
        where = tuple(zip(keys, row[: len(keys)], strict=True))
        for number, column in enumerate(columns):
            kind, raw = row[len(keys) + 2 * number : len(keys) + 2 * number + 2]
            for how, sql, value in _changes(kind, raw, chance, bits):
                yield Flip(table, where, column, how, sql, value)


def of_every_kind(path: Path, table: str, *, seed: int, bits: int = 2) -> list[Flip]:
    """Return changes of `table`, one of each kind for each column, in rows chosen by chance."""
    chance = random.Random(seed)
    kinds: dict[tuple[str, str], list[Flip]] = {}
    for flip in flips(path, table, chance, bits):
        kinds.setdefault((flip.column, re.sub(r"[0-9-]+", "", flip.how)), []).append(flip)
    return [chance.choice(alike) for alike in kinds.values()]


def _changes(kind: str, raw: bytes | None, chance: random.Random, bits: int) -> Iterator[tuple[str, str, Any]]:
    match kind:
        case "null":
            yield "something instead of nothing", "?", 1
        case "integer":
            number = int(raw or b"0")
            for bit in {0, *(chance.randrange(_INTEGER_BITS) for _ in range(bits - 1))}:
                yield f"bit {bit} of {number}", "?", _signed(number ^ (1 << bit))
            yield f"{number} as text", "?", f"{number}x"
        case "text" | "blob" if raw:
            for _ in range(bits):
                place, bit = chance.randrange(len(raw)), chance.randrange(8)
                flipped = raw[:place] + bytes([raw[place] ^ (1 << bit)]) + raw[place + 1 :]
                yield f"bit {bit} of byte {place}", "CAST(? AS TEXT)" if kind == "text" else "?", flipped
            yield "a byte less", "CAST(? AS TEXT)" if kind == "text" else "?", raw[:-1]
            yield "the other type", "?" if kind == "text" else "CAST(? AS TEXT)", raw
        case _:
            yield "something instead of an empty text", "?", "x"


def _signed(number: int) -> int:
    number &= (1 << _INTEGER_BITS) - 1
    return number - (1 << _INTEGER_BITS) if number >> (_INTEGER_BITS - 1) else number
