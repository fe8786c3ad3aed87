"""The chained checksum that binds an entry to its run, its place and everything before it."""

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from holdfast.core.errors import Damaged
from holdfast.core.ids import RunId, id_bytes

CHECKSUM_BYTES: Final = 16
ZERO: Final = bytes(CHECKSUM_BYTES)
"""What stands before the first entry."""
_HEADER: Final = Struct(">16sqqIIH")


class StoredEntry(NamedTuple):
    """An entry as it stands on disk; the bytes of `body` are what every reader sees, for ever."""

    seq: int
    kind: str
    version: int
    at: int
    enc: int
    body: bytes
    checksum: bytes


class Share(NamedTuple):
    """The entries of a fork up to `up_to`, behind those of the share before: `run` wrote them."""

    up_to: int
    run: RunId


def checksum(run: bytes, seq: int, at: int, version: int, kind: str, enc: int, previous: bytes, body: bytes) -> bytes:
    """Return the BLAKE2b-128 of an entry: it detects damage, not forgery."""
    name = kind.encode()
    hashed = blake2b(_HEADER.pack(run, seq, at, version, len(name), enc) + name + previous, digest_size=16)
    hashed.update(body)
    return hashed.digest()


def check_chain(
    run: RunId, previous: bytes, rows: Sequence[StoredEntry], after: int, shares: Sequence[Share] = ()
) -> bytes:
    """Return the checksum of the last of `rows`, which follow entry `after` whose checksum is `previous`.

    `shares` says which of them a fork has of other runs; they are bound to those.

    Raises:
        Damaged: a row is missing, repeated or altered; it names the run and the first bad seq.
    """
    raw = id_bytes(run)
    expected = after
    for row in rows:
        expected += 1
        if row.seq != expected:
            raise Damaged(run=run, seq=expected, what=f"entry {expected} is missing (found {row.seq})")
        try:
            owner = raw if not shares else id_bytes(owner_of(run, shares, row.seq))
            found = checksum(owner, row.seq, row.at, row.version, row.kind, row.enc, previous, row.body)
        except Exception as error:
            raise Damaged(run=run, seq=expected, what=f"the row is malformed: {error}") from error
        if found != row.checksum:
            raise Damaged(run=run, seq=expected, what="its checksum does not match its bytes")
        previous = found
    return previous


def owner_of(run: RunId, shares: Sequence[Share], seq: int) -> RunId:
    """Return the run that wrote entry `seq` of `run`."""
    return next((share.run for share in shares if seq <= share.up_to), run)
