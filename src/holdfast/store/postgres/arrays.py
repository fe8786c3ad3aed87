"""Columns of a batch as PostgreSQL arrays in their binary form, made in one go; psycopg's own lists cost ten times."""

from collections.abc import Sequence
from functools import cache
from struct import Struct, pack
from typing import Any, ClassVar, Final

from psycopg import AsyncConnection, Connection
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

_NULL: Final = pack(">i", -1)


@cache
def _pairs(count: int) -> Struct:
    """Return how as many integers are laid out, each behind its length."""
    return Struct(">" + "iq" * count)


class Column:
    """An array with its bytes made ready; which kind of elements it has, its class says."""

    __slots__ = ("raw",)
    element: ClassVar[int]
    array: ClassVar[int]

    def __init__(self, count: int, body: bytes, *, nulls: bool) -> None:
        head = pack(">iiiii", 1, nulls, self.element, count, 1) if count else pack(">iii", 0, 0, self.element)
        self.raw = head + body


class Integers(Column):
    """bigint[]"""

    __slots__ = ()
    element, array = 20, 1016

    def __init__(self, values: Sequence[int | None]) -> None:
        count = len(values)
        if None not in values:
            pairs: list[Any] = [8] * (2 * count)
            pairs[1::2] = values
            super().__init__(count, _pairs(count).pack(*pairs), nulls=False)
        elif values.count(None) == count:
            super().__init__(count, _NULL * count, nulls=True)
        else:
            body = b"".join(_NULL if value is None else pack(">iq", 8, value) for value in values)
            super().__init__(count, body, nulls=True)


class Bytes(Column):
    """bytea[]"""

    __slots__ = ()
    element, array = 17, 1001

    def __init__(self, values: Sequence[bytes | None]) -> None:
        parts = [_NULL if value is None else pack(">i", len(value)) + value for value in values]
        super().__init__(len(values), b"".join(parts), nulls=None in values)


class Texts(Bytes):
    """text[]"""

    __slots__ = ()
    element, array = 25, 1009

    def __init__(self, values: Sequence[str | None]) -> None:
        count = len(values)
        if count and values.count(values[0]) == count:  # as most columns do, it says the same all the way down
            one = _NULL if values[0] is None else pack(">i", len(values[0].encode())) + values[0].encode()
            Column.__init__(self, count, one * count, nulls=values[0] is None)
        else:
            super().__init__([None if value is None else value.encode() for value in values])


class Ids(Bytes):
    """uuid[], from sixteen bytes each."""

    __slots__ = ()
    element, array = 2950, 2951


class Id(bytes):
    """One uuid, from its sixteen bytes."""

    __slots__ = ()


class _IdDumper(Dumper):
    format = Format.BINARY
    oid = Ids.element

    def dump(self, obj: Id) -> Buffer:
        return obj


class _ColumnDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Column) -> Buffer:
        return obj.raw


class _IdLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


_DUMPERS: Final = {
    column: type(f"{column.__name__}Dumper", (_ColumnDumper,), {"oid": column.array})
    for column in (Integers, Bytes, Texts, Ids)
}


def adapt(connection: AsyncConnection[Any] | Connection[Any]) -> None:
    """Let a connection take columns, and give ids as their sixteen bytes."""
    for column, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(column, dumper)
    connection.adapters.register_dumper(Id, _IdDumper)
    connection.adapters.register_loader("uuid", _IdLoader)
