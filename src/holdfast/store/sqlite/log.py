"""Looks behind the end that SQLite found in a write-ahead log: commits there were lost to damage, not to a crash."""

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

# SQLite reads a log up to the first frame whose checksum does not match, which is right for the torn end that a crash
# leaves, and takes a flipped bit in the middle for the same. But a commit is on disk before the next one is written:
# one that a later frame follows cannot be a torn end.
_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_BIG_ENDIAN_SUMS: Final = 0x377F0683
_LITTLE_ENDIAN_SUMS: Final = 0x377F0682
_STRANGERS: Final = 64
"""After so many frames of former logs, the rest is of former logs too."""

Sum = tuple[int, int]


class Frame(NamedTuple):
    """A page as the log holds it; `size` is not zero where it ends a commit."""

    size: int
    salt: bytes
    stored: Sum
    begin: int
    end: int


def lost_commit(log: bytes, page_bytes: int, known: int) -> int | None:
    """Return the number of a frame that ends a commit behind the `known` frames and is followed by a later one.

    None means that nothing is lost but what was never acknowledged.
    """
    sums = _Sums(log)
    frames = list(_frames(log, page_bytes, known, sums.salt(page_bytes)))
    computed: Sum | None = sums.before(known, page_bytes)
    for number, (frame, follower) in enumerate(pairwise(frames), start=known + 1):
        computed = sums.of(frame, computed) if computed is not None else None
        if frame.size and frame.salt == follower.salt:
            starts = (frame.stored, computed) if computed is not None else (frame.stored,)
            if any(sums.of(follower, start) == follower.stored for start in starts):
                return number
    return None


def _frames(log: bytes, page_bytes: int, known: int, salt: bytes) -> Iterator[Frame]:
    """Yield the frames behind the known ones; one of another salt is among them if a bit of its salt was flipped."""
    strangers = 0
    step = _FRAME_HEADER_BYTES + page_bytes
    for begin in range(_HEADER_BYTES + known * step, len(log) - step + 1, step):
        _, size, first, second = struct.unpack_from(">II8x2I", log, begin)
        frame = Frame(size, log[begin + 8 : begin + 16], (first, second), begin, begin + step)
        strangers = 0 if frame.salt == salt else strangers + 1
        if strangers > _STRANGERS:
            return
        yield frame


class _Sums:
    """The log's own checksum: two running sums over its words, in the byte order that its header names."""

    def __init__(self, log: bytes) -> None:
        self._log = log
        magic = int.from_bytes(log[:4], "big")
        self._words = struct.Struct(">II" if magic == _BIG_ENDIAN_SUMS else "<II")
        stored = struct.unpack_from(">II", log, 24)
        self._header: Sum | None = self._run((0, 0), log[:24])
        if magic not in (_BIG_ENDIAN_SUMS, _LITTLE_ENDIAN_SUMS) or self._header != stored:
            self._header = None

    def salt(self, page_bytes: int) -> bytes:
        """Return what marks this log's frames: as the header says, or the first frame if the header is damaged."""
        return self._log[16:24] if self._header is not None else self._log[_HEADER_BYTES + 8 : _HEADER_BYTES + 16]

    def before(self, number: int, page_bytes: int) -> Sum | None:
        """Return the sum that frame `number` ends with; None if only a damaged header could tell."""
        if number == 0:
            return self._header
        begin = _HEADER_BYTES + (number - 1) * (_FRAME_HEADER_BYTES + page_bytes)
        first, second = struct.unpack_from(">II", self._log, begin + 16)
        return first, second

    def of(self, frame: Frame, start: Sum) -> Sum:
        """Return the sum after a frame, from the one before it."""
        page = self._log[frame.begin + _FRAME_HEADER_BYTES : frame.end]
        return self._run(start, self._log[frame.begin : frame.begin + 8] + page)

    def _run(self, start: Sum, data: bytes) -> Sum:
        first, second = start
        for one, other in self._words.iter_unpack(data):
            first = (first + one + second) & 0xFFFFFFFF
            second = (second + other + first) & 0xFFFFFFFF
        return first, second
