"""Looks behind the end that SQLite found in a write-ahead log: commits there were lost to damage, not to a crash."""

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

# SQLite reads a log up to the first frame whose checksum does not match, which is right for the torn end that a crash
# leaves, and takes a flipped bit in the middle for the same. But a commit is on disk before the next one is written:
# one that a frame of the same log follows, by its salt and its sum, cannot be a torn end.
_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_BIG_ENDIAN_SUMS: Final = 0x377F0683
_LITTLE_ENDIAN_SUMS: Final = 0x377F0682

Sum = tuple[int, int]
Read = Callable[[int, int], bytes]
"""Gives so many bytes from an offset on; zeros where the file has none."""


class _Frame(NamedTuple):
    """What stands before a page in the log; `size` is not zero where the page ends a commit."""

    number: int
    page: int
    size: int
    salt: bytes
    stored: Sum


def lost_commit(log: Read, log_bytes: int, database: Read, page_bytes: int, known: int) -> int | None:
    """Return the number of a frame that ends a commit behind the `known` ones and is not a torn end.

    A log of which nothing is known has lost nothing if the database file has it all, as it does when a crash came
    between taking the log into the file and beginning it anew.
    """
    reader = _Log(log, log_bytes, page_bytes)
    synced, last = reader.commits_behind(known)
    if synced is not None and known == 0:
        latest = {frame.page: frame for frame in reader.frames(1, last)}
        if all(database((page - 1) * page_bytes, page_bytes) == reader.body(of) for page, of in latest.items()):
            return None
    return synced


class _Log:
    """A log's header and frames; a checksum is two running sums over words, in the byte order that the header names."""

    def __init__(self, read: Read, log_bytes: int, page_bytes: int) -> None:
        self._read, self._page_bytes = read, page_bytes
        self._whole: Final = (log_bytes - _HEADER_BYTES) // (_FRAME_HEADER_BYTES + page_bytes)
        header = read(0, _HEADER_BYTES)
        magic = int.from_bytes(header[:4], "big")
        self._words: Final = struct.Struct(">II" if magic == _BIG_ENDIAN_SUMS else "<II")
        self._header_sum: Final[Sum] = struct.unpack(">II", header[24:])
        sound = magic in (_BIG_ENDIAN_SUMS, _LITTLE_ENDIAN_SUMS) and self._run(header[:24], (0, 0)) == self._header_sum
        self.salt: Final = header[16:24] if sound else self._read(_HEADER_BYTES + 8, 8)
        """What marks this log's frames from those of former ones; a damaged header does not say, its frames do."""

    def commits_behind(self, known: int) -> tuple[int | None, int]:
        """Return where the first commit ends that a whole frame follows, so it was synced; and the last whole one."""
        before, synced, end = self._stored(known), None, 0
        for frame in self.frames(known + 1):
            whole = frame.salt == self.salt and self._sum(frame, before) == frame.stored
            if whole and end and synced is None:
                synced = end
            elif not whole and synced is not None:
                break
            if not whole or frame.size:
                end = frame.number if whole else 0
            before = frame.stored
        return synced, end

    def frames(self, first: int, last: int | None = None) -> Iterator[_Frame]:
        """Yield the whole frames from the first to the last."""
        for number in range(first, (self._whole if last is None else last) + 1):
            raw = self._read(self._begin(number), _FRAME_HEADER_BYTES)
            page, size, one, other = struct.unpack(">II8x2I", raw)
            yield _Frame(number, page, size, raw[8:16], (one, other))

    def body(self, frame: _Frame) -> bytes:
        """Return the page that a frame holds."""
        return self._read(self._begin(frame.number) + _FRAME_HEADER_BYTES, self._page_bytes)

    def _sum(self, frame: _Frame, start: Sum) -> Sum:
        return self._run(struct.pack(">II", frame.page, frame.size) + self.body(frame), start)

    def _run(self, data: bytes, start: Sum) -> Sum:
        one, other = start
        for left, right in self._words.iter_unpack(data):
            one = (one + left + other) & 0xFFFFFFFF
            other = (other + right + one) & 0xFFFFFFFF
        return one, other

    def _stored(self, number: int) -> Sum:
        if number == 0:
            return self._header_sum
        one, other = struct.unpack(">II", self._read(self._begin(number) + 16, 8))
        return one, other

    def _begin(self, number: int) -> int:
        return _HEADER_BYTES + (number - 1) * (_FRAME_HEADER_BYTES + self._page_bytes)
