"""The form that runs have outside a store: lines of JSON, whole and checked, one run after another."""

import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct

from holdfast.client.protocol import Finding
from holdfast.client.reading import blobs_of, read_blob
from holdfast.core.checksum import ZERO, Share, StoredEntry, check_chain
from holdfast.core.cursor import START, Cursor
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, InvalidInput, UnknownEntry
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import RunId, is_id
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import RunRow

VERSION: Final = 1
_GZIP: Final = b"\x1f\x8b"


class RunLine(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="run", forbid_unknown_fields=True, omit_defaults=True
):
    """A run begins: what its row says. Times are µs UTC."""

    v: int
    store: str
    epoch: int
    at: int
    """When it was written, by the store's clock."""
    run: str
    tenant: str
    name: str
    status: Status
    reason: str
    key: str | None
    digest: str
    code: str
    pin: bool
    labels: dict[str, str]
    parent: str | None
    root: str
    conversation: str | None
    turn: int | None
    created_at: int
    updated_at: int
    due_at: int | None
    attempt: int
    fence: int
    last_seq: int
    head: str
    """The last entry's checksum, in hex."""
    shares: list[Share] = []
    """Of a fork: up to which entry which other run wrote its entries."""


class EntryLine(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="entry", forbid_unknown_fields=True, omit_defaults=True
):
    """An entry as stored: `body` is its bytes, which are JSON; those that are not stand in `raw` as base64."""

    seq: int
    kind: str
    v: int
    at: int
    enc: int
    checksum: str
    body: Raw = Raw(b"null")
    raw: bytes | None = None


class BlobLine(Struct, frozen=True, kw_only=True, tag_field="type", tag="blob", forbid_unknown_fields=True):
    """A payload too large for its entry, in base64; it stands before the first entry that names it."""

    digest: str
    body: bytes


class EndLine(Struct, frozen=True, kw_only=True, tag_field="type", tag="end", forbid_unknown_fields=True):
    """A run ends here, whole: `sum` is the BLAKE2b-128 of the bytes of all its lines before this one, in hex."""

    run: str
    entries: int
    blobs: int
    sum: str


Line = RunLine | EntryLine | BlobLine | EndLine
_encode: Final = msgspec.json.Encoder().encode
_decode: Final[Callable[[bytes], Line]] = msgspec.json.Decoder(Line).decode
_decode_entry: Final = msgspec.json.Decoder(EntryLine).decode


class ArchivedRun(Struct, frozen=True, kw_only=True):
    """A run as an archive holds it, checked."""

    store: str
    """The id of the store that it was in."""
    epoch: int
    row: RunRow
    """What its row said; without a number and an owner, which are a store's own."""
    entries: Sequence[StoredEntry]
    blobs: Mapping[str, bytes]
    """By digest; every one that its entries name."""
    shares: Sequence[Share] = ()
    """Of a fork: what it has of other runs. Those entries are here too."""

    @property
    def run(self) -> RunId:
        """Its id."""
        return self.row.run


# Writing


async def export_run(store: Store, run: RunId) -> AsyncIterator[bytes]:
    """Yield a run's lines, each with its line break; of one that goes on, what stood there at the first line.

    Raises:
        NotFound: there is no such run.
        Damaged: something of it cannot be vouched for; nothing may rely on the lines so far.
        UnknownEntry: a newer Holdfast wrote it.
    """
    page = await store.read(run, START, chunks=False)
    row = page.row
    if row.damage:
        raise Damaged(run=run, seq=None, what=row.damage)
    hashed = blake2b(digest_size=16)

    def line(value: Line | bytes) -> bytes:
        made = (value if isinstance(value, bytes) else _encode(value)) + b"\n"
        hashed.update(made)
        return made

    yield line(_run_line(store, row, page.shares))
    seq, head, named = 0, ZERO, set[str]()
    while True:
        rows = page.entries[: row.last_seq - seq]
        head = check_chain(run, head, rows, seq, page.shares)
        for stored in rows:
            for digest in blobs_of(read_entry(run, stored)):
                if digest not in named:
                    named.add(digest)
                    yield line(BlobLine(digest=digest, body=await read_blob(store, row, stored.seq, digest)))
            yield line(_entry_line(stored))
        seq += len(rows)
        if seq == row.last_seq or not page.more:
            break
        page = await store.read(run, Cursor(seq), chunks=False)
    if (seq, head) != (row.last_seq, row.head):
        raise Damaged(run=run, seq=seq + 1, what=f"the row says {row.last_seq} entries")
    yield _encode(EndLine(run=run, entries=seq, blobs=len(named), sum=hashed.hexdigest())) + b"\n"


def _run_line(store: Store, row: RunRow, shares: Sequence[Share]) -> RunLine:
    return RunLine(
        v=VERSION, store=store.id, epoch=store.epoch, at=store.now(), run=row.run, tenant=row.tenant, name=row.name,
        status=row.status, reason=row.reason, key=row.key, digest=row.digest, code=row.code, pin=row.pin,
        labels=dict(row.labels), parent=row.parent, root=row.root or row.run, conversation=row.conversation,
        turn=row.turn, created_at=row.created_at, updated_at=row.updated_at, due_at=row.due_at, attempt=row.attempt,
        fence=row.fence, last_seq=row.last_seq, head=row.head.hex(), shares=list(shares),
    )  # fmt: skip


def _entry_line(stored: StoredEntry) -> bytes:
    line = EntryLine(
        seq=stored.seq, kind=stored.kind, v=stored.version, at=stored.at, enc=stored.enc,
        checksum=stored.checksum.hex(), body=Raw(stored.body),
    )  # fmt: skip
    made = _encode(line)
    try:
        made.decode()
        if b"\n" not in made and bytes(_decode_entry(made).body) == stored.body:
            return made
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    return _encode(msgspec.structs.replace(line, body=Raw(b"null"), raw=stored.body))


# Reading


def read_archive(path: str, *, wrong: Callable[[Finding], None] | None = None) -> Iterator[ArchivedRun]:
    """Yield the runs of an archive, in its order, each whole and checked; one that was archived twice comes twice.

    With `wrong` that is told of what is damaged, and the next run follows.

    Raises:
        InvalidInput: the file cannot be read, or is no archive.
        Damaged: a run of it is not as it was written.
    """
    for found in _read(path, keep=True):
        if isinstance(found, ArchivedRun):
            yield found
        elif wrong is None:
            raise Damaged(run=found.run or "", seq=found.seq, what=found.what)
        else:
            wrong(found)


def check_archive(path: str, *, seen: Callable[[RunId], None] | None = None) -> Iterator[Finding]:
    """Yield everything that is wrong with an archive, and go on with its next run; `seen` is told of every sound one.

    Raises:
        InvalidInput: the file cannot be read, or is no archive.
    """
    for found in _read(path, keep=False):
        if isinstance(found, Finding):
            yield found
        elif seen is not None:
            seen(found.run)


def _read(path: str, *, keep: bool) -> Iterator[ArchivedRun | Finding]:
    """Yield what stands in an archive; without `keep` the runs come without their entries and blobs."""
    walk = _Walk(keep=keep)
    for number, raw in enumerate(_lines(path), start=1):
        found = walk.torn(raw) if isinstance(raw, str) else walk.take(raw, number)
        if number == 1 and isinstance(found, Finding):
            raise _not_one(f"{path} is not an archive: {found.what}")
        if found is not None:
            yield found
    if walk.last == 0:
        raise _not_one(f"{path} is not an archive: it is empty")
    if (cut := walk.end()) is not None:
        yield cut


class _Walk:
    """Goes through an archive line by line; what is wrong with a run does not keep it from the next."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._reading: _Reading | None = None
        self._skipping = False
        self.last = 0

    def take(self, raw: bytes, number: int) -> ArchivedRun | Finding | None:
        """Take a line; return the run that it ends, or what is wrong with it."""
        self.last = number
        try:
            line = _parse(raw, number)
            if isinstance(line, RunLine):
                return self._begin(line, raw)
            if self._reading is None:
                return self._stray()
            done = self._reading.take(line)
            self._reading.saw(raw)
        except Damaged as error:
            found = Finding(run=error.run or None, seq=error.seq, what=error.what_is_wrong)
            if self._reading is not None and not error.run:
                found = self._reading.wrong(error.what_is_wrong)
            known, self._reading, self._skipping = self._skipping, None, True
            return None if known else found
        if done is not None:
            self._reading = None
        return done

    def _begin(self, line: RunLine, raw: bytes) -> Finding | None:
        before, self._reading, self._skipping = self._reading, _Reading(line, keep=self._keep), False
        self._reading.saw(raw)
        return before.wrong(f"line {self.last} begins another run before this one is whole") if before else None

    def _stray(self) -> Finding | None:
        known, self._skipping = self._skipping, True
        return None if known else Finding(run=None, seq=None, what=f"line {self.last} belongs to no run")

    def torn(self, why: str) -> Finding:
        """Return what is wrong where the file cannot be unpacked any further."""
        reading, self._reading = self._reading, None
        what = f"the archive cannot be unpacked after line {self.last}: {why}"
        return reading.wrong(what) if reading is not None else Finding(run=None, seq=None, what=what)

    def end(self) -> Finding | None:
        """Return what is wrong with an archive that ends here."""
        what = f"the archive ends at line {self.last}, before this run is whole"
        return self._reading.wrong(what) if self._reading is not None else None


class _Reading:
    """One run of an archive while its lines come in."""

    def __init__(self, line: RunLine, *, keep: bool) -> None:
        self._line, self._keep = line, keep
        self._run = RunId(line.run)
        self._hashed = blake2b(digest_size=16)
        self._head, self._state = ZERO, RunState()
        self._entries: list[StoredEntry] = []
        self._blobs: dict[str, bytes] = {}

    def saw(self, raw: bytes) -> None:
        """Count a line's bytes in."""
        self._hashed.update(raw)

    def take(self, line: EntryLine | BlobLine | EndLine) -> ArchivedRun | None:
        """Take the next line; return the run if it is the last."""
        match line:
            case EntryLine():
                self._take_entry(line)
            case BlobLine():
                if sha256(line.body).hexdigest() != line.digest:
                    raise self._damaged(f"blob {line.digest} does not have the bytes its digest says")
                self._blobs[line.digest] = line.body if self._keep else b""
            case EndLine():
                return self._end(line)
        return None

    def _take_entry(self, line: EntryLine) -> None:
        body = bytes(line.body) if line.raw is None else line.raw
        try:
            checksum = bytes.fromhex(line.checksum)
        except ValueError:
            raise self._damaged("its checksum is not hex") from None
        stored = StoredEntry(line.seq, line.kind, line.v, line.at, line.enc, body, checksum)
        self._head = check_chain(self._run, self._head, [stored], self._state.seq, self._line.shares)
        try:
            entry = read_entry(self._run, stored)
        except UnknownEntry as error:
            raise self._damaged(str(error)) from error
        for digest in blobs_of(entry):
            if digest not in self._blobs:
                raise self._damaged(f"blob {digest} is missing")
        self._state = fold(self._state, entry)
        if self._keep:
            self._entries.append(stored)

    def _end(self, line: EndLine) -> ArchivedRun:
        said, state = self._line, self._state
        if (state.seq, self._head.hex()) != (said.last_seq, said.head):
            raise self._damaged(f"the row says {said.last_seq} entries")
        if said.status.terminal and state.status is not said.status:
            raise self._damaged(f"the row says {said.status}, the journal {state.status}", seq=None)
        if (line.run, line.entries, line.blobs) != (said.run, state.seq, len(self._blobs)):
            raise self._damaged("its last line is another run's, or counts other lines", seq=None)
        if line.sum != self._hashed.hexdigest():
            raise self._damaged("its lines are not as they were written", seq=None)
        return ArchivedRun(
            store=said.store, epoch=said.epoch, row=_row(said), entries=self._entries, blobs=self._blobs,
            shares=said.shares,
        )  # fmt: skip

    def wrong(self, what: str) -> Finding:
        """Return what is wrong, after the last sound entry."""
        return Finding(run=self._run, seq=self._state.seq + 1, what=what)

    def _damaged(self, what: str, *, seq: int | None = -1) -> Damaged:
        return Damaged(run=self._run, seq=self._state.seq + 1 if seq == -1 else seq, what=what)


def _row(line: RunLine) -> RunRow:
    fields = {name: getattr(line, name) for name in RunRow.__struct_fields__ if hasattr(line, name)}
    return RunRow(**fields | {"number": 0, "head": bytes.fromhex(line.head)})


def _parse(raw: bytes, number: int) -> Line:
    try:
        line = _decode(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(run="", seq=None, what=f"line {number} is not an archive's: {error}") from error
    if isinstance(line, RunLine) and line.v != VERSION:
        raise Damaged(run=line.run, seq=None, what=f"line {number} has version {line.v}: it needs a newer Holdfast")
    if isinstance(line, RunLine) and not is_id(line.run):
        raise Damaged(run="", seq=None, what=f"line {number} names a run that has no id")
    return line


def is_beginning(raw: bytes) -> bool:
    """Say whether a line begins a run, in a form that this version adds to."""
    try:
        return isinstance(_parse(raw, 1), RunLine)
    except Damaged:
        return False


def is_ending(raw: bytes) -> bool:
    """Say whether a line ends a run."""
    try:
        return isinstance(_parse(raw, 1), EndLine)
    except Damaged:
        return False


def _lines(path: str) -> Iterator[bytes | str]:
    """Yield the lines of a file, packed by gzip or not; where it cannot be unpacked, why, and nothing after that."""
    try:
        with open(path, "rb") as plain:
            packed = plain.read(2) == _GZIP
            plain.seek(0)
            yield from gzip.GzipFile(fileobj=plain) if packed else plain
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield str(error)
    except OSError as error:
        raise _not_one(f"{path} cannot be read: {error.strerror}") from error


def _not_one(what: str) -> InvalidInput:
    error = InvalidInput(what)
    error.hint = "An archive is what `holdfast gc --archive FILE` or `holdfast export RUN` wrote."
    return error
