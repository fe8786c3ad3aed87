"""A value as what it adds to an earlier one: pure rules over encoded bytes."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

_SHALLOW: Final = 16
_WORTH_BYTES: Final = 64
"""A shorter stretch is not worth another row to read."""
_PIECE_BYTES: Final = 256
"""A value spread over more rows than a few, of fewer bytes than this each, is written whole again."""


class Encoded(Struct, frozen=True):
    """A value in a serializer's form; of a list, each element is a piece."""

    kind: str
    """What the serializer calls the form."""
    count: int | None
    """How many elements a list has, whose head is made of it; None for anything else."""
    pieces: Sequence[bytes]


class Row(Struct, frozen=True, array_like=True):
    """A stored value: a stretch of another's body, and what comes behind it."""

    kind: str
    count: int | None
    base: bytes | None
    """The key of the value that the stretch is taken from."""
    skip: int
    keep: int
    """Where the stretch begins and ends in the base's body."""
    tail: bytes

    @property
    def stretch(self) -> int:
        """How many bytes it takes from its base."""
        return self.keep - self.skip


class Link(Struct, frozen=True):
    """A row that a body is made of, and the link to the row that it builds on."""

    key: bytes
    row: Row
    """Without its tail."""
    below: "Link | None"
    depth: int


class Held(Struct, frozen=True):
    """A stored value with its whole body, to build the next one on."""

    kind: str
    count: int | None
    body: bytes
    link: Link

    def is_same(self, new: Encoded) -> bool:
        """Say whether `new` is this value."""
        return self.kind == new.kind and self.count == new.count and self.body == b"".join(new.pieces)


def linked(key: bytes, row: Row, below: Link | None) -> Link:
    """Return the link of a row."""
    bare = Row(row.kind, row.count, row.base, row.skip, row.keep, b"")
    return Link(key, bare, below, below.depth + 1 if below is not None else 1)


def follow(held: Held | None, new: Encoded, key: bytes) -> tuple[Row, Held]:
    """Return the row that stores `new`, building on `held` if that saves anything, and what is held then."""
    body = b"".join(new.pieces)
    start, run = common(held.body, new) if held is not None and held.kind == new.kind else (0, 0)
    link = held.link if held is not None else None
    if run < _WORTH_BYTES or link is None or link.depth > _SHALLOW + len(body) // _PIECE_BYTES:
        row = Row(new.kind, new.count, None, 0, 0, body)
        return row, Held(new.kind, new.count, body, linked(key, row, None))
    skip, keep = start, start + run
    # Where all of it comes from what the base itself took from below, build on that: each row then gives something.
    while link.below is not None and keep <= link.row.stretch:
        skip, keep, link = skip + link.row.skip, keep + link.row.skip, link.below
    row = Row(new.kind, new.count, link.key, skip, keep, body[run:])
    return row, Held(new.kind, new.count, body, linked(key, row, link))


def common(base: bytes, new: Encoded) -> tuple[int, int]:
    """Return where the beginning of `new` stands in `base`, and how many bytes long; a list may have lost its head."""
    if new.count is None:
        return 0, _prefix(base, new.pieces[0])
    if not new.pieces:
        return 0, 0
    start = 0 if base.startswith(new.pieces[0]) else max(base.find(new.pieces[0]), 0)
    end = start
    for piece in new.pieces:
        if not base.startswith(piece, end):
            break
        end += len(piece)
    return start, end - start


def _prefix(one: bytes, other: bytes) -> int:
    """Return how many bytes two values have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Assembly:
    """Puts a body together from its rows, the newest first; each row is asked for what is still missing."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._rows: list[tuple[bytes, Row]] = []
        self._low = 0
        self._high: int | None = None

    def take(self, key: bytes, row: Row) -> bytes | None:
        """Take what a row gives, and return the key of the row that the rest is in."""
        self._rows.append((key, row))
        high = row.stretch + len(row.tail) if self._high is None else self._high
        if high > row.stretch:
            self._parts.append(row.tail[max(self._low - row.stretch, 0) : high - row.stretch])
        if row.base is None or self._low >= min(high, row.stretch):
            return None
        self._low, self._high = self._low + row.skip, min(high, row.stretch) + row.skip
        return row.base

    def held(self) -> Held:
        """Return the value, once nothing is missing."""
        link: Link | None = None
        for key, row in reversed(self._rows):
            link = linked(key, row, link)
        first = self._rows[0][1]
        assert link is not None
        return Held(first.kind, first.count, b"".join(reversed(self._parts)), link)
