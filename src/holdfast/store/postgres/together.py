"""Several questions as one statement: what they find is of one moment, without a transaction around them."""

from collections.abc import Sequence
from typing import Any

from holdfast.store.postgres.connection import Async, Names

Row = tuple[Any, ...]


class Together:
    """Questions with their number of columns, of which the first is never null; the values are shared by all."""

    def __init__(self, names: Names, *questions: tuple[str, int]) -> None:
        # Not to be merged into the joins (OFFSET): each is asked only in its own part.
        joins = " ".join(
            f"LEFT JOIN LATERAL (SELECT * FROM ({text}) q WHERE part.n = {place} OFFSET 0) p{place} ON TRUE"
            for place, (text, _) in enumerate(questions)
        )
        parts = ", ".join(f"({place})" for place in range(len(questions)))
        columns = ", ".join(f"p{place}.*" for place in range(len(questions)))
        self._statement = names(f"SELECT part.n, {columns} FROM (VALUES {parts}) AS part(n) {joins}")
        self._ends: list[tuple[int, int]] = []
        end = 1
        for _, width in questions:
            self._ends.append((end, end + width))
            end += width

    async def ask(self, connection: Async, values: Sequence[Any]) -> list[list[Row]]:
        """Return the rows of each question."""
        cursor = await connection.execute(self._statement, values, binary=True)
        answers: list[list[Row]] = [[] for _ in self._ends]
        for row in await cursor.fetchall():
            begin, end = self._ends[row[0]]
            if row[begin] is not None:
                answers[row[0]].append(row[begin:end])
        return answers
