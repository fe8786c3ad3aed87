"""A statement's rows, text that is no text any more included."""

from typing import Any

import apsw

Row = tuple[Any, ...]


def fetch(connection: apsw.Connection | apsw.Cursor, sql: str, values: Any = ()) -> list[Row]:
    """Return the rows of a statement; a text that damage made unreadable comes with its bad bytes spelt out."""
    try:
        return connection.execute(sql, values).fetchall()
    except UnicodeDecodeError:
        return fetch_raw(connection, sql, values)


def fetch_raw(connection: apsw.Connection | apsw.Cursor, sql: str, values: Any = ()) -> list[Row]:
    """Do as `fetch` does when it finds an unreadable text: ask for every text's bytes."""
    cursor = connection.cursor() if isinstance(connection, apsw.Connection) else connection.connection.cursor()
    names = [f"c{number}" for number in range(_width(cursor, sql, values))]
    shown = ", ".join(f"typeof({c}), CASE typeof({c}) WHEN 'text' THEN CAST({c} AS BLOB) ELSE {c} END" for c in names)
    rows = cursor.execute(f"WITH q ({', '.join(names)}) AS ({sql}) SELECT {shown} FROM q", values).fetchall()
    return [tuple(_decoded(*row[place : place + 2]) for place in range(0, len(row), 2)) for row in rows]


def _width(cursor: apsw.Cursor, sql: str, values: Any) -> int:
    widths: list[int] = []

    def look(cursor: apsw.Cursor, statement: str, bindings: Any) -> bool:
        widths.append(len(cursor.get_description()))
        return False

    cursor.exec_trace = look
    try:
        cursor.execute(sql, values)
    except apsw.ExecTraceAbort:
        pass
    finally:
        cursor.exec_trace = None
    return widths[0]


def _decoded(kind: Any, value: Any) -> Any:
    return value.decode(errors="backslashreplace") if kind == "text" else value
