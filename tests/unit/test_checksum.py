"""The chained checksum: damage of any kind, at any place, shows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.checksum import ZERO, StoredEntry, check_chain, checksum
from holdfast.core.errors import Damaged
from holdfast.core.ids import RunId, id_bytes
from tests.unit.facts import AT, OTHER, RUN

ARGUMENTS: dict[str, Any] = {
    "run": id_bytes(RunId(RUN)), "seq": 3, "at": AT, "version": 1, "kind": "Emitted", "enc": 0, "previous": ZERO,
    "body": b'{"a":1}',
}  # fmt: skip


def chain(*bodies: bytes) -> list[StoredEntry]:
    """Return a sound journal."""
    head, rows = ZERO, []
    for seq, body in enumerate(bodies, start=1):
        head = checksum(id_bytes(RunId(RUN)), seq, AT + seq, 1, "Emitted", 0, head, body)
        rows.append(StoredEntry(seq, "Emitted", 1, AT + seq, 0, body, head))
    return rows


def test_a_checksum_never_changes() -> None:
    """The layout is on disk for ever."""
    assert checksum(**ARGUMENTS).hex() == "dff57cdf0a677b1a5ea3aea7cd0231f9"


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("run", id_bytes(RunId(OTHER))), ("seq", 4), ("at", AT + 1), ("version", 2), ("kind", "Emittee"), ("enc", 1),
        ("previous", b"\x01" * 16), ("body", b'{"a":2}'), ("body", b""),
    ],
)  # fmt: skip
def test_every_part_of_an_entry_is_covered(field: str, other: Any) -> None:
    """A row that was moved to another run, place, time, kind or form does not pass."""
    assert checksum(**{**ARGUMENTS, field: other}) != checksum(**ARGUMENTS)


def test_bytes_cannot_move_between_kind_and_body() -> None:
    """The kind is length-prefixed, so its end is certain."""
    one = checksum(**{**ARGUMENTS, "kind": "Emitted", "previous": b"", "body": b"x"})
    assert checksum(**{**ARGUMENTS, "kind": "Emittedx", "previous": b"", "body": b""}) != one


def test_a_sound_chain_ends_in_its_head() -> None:
    """Whole or in pages, the same head comes out."""
    rows = chain(b"a", b"b", b"c")
    assert check_chain(RunId(RUN), ZERO, rows, 0) == rows[-1].checksum
    middle = check_chain(RunId(RUN), ZERO, rows[:1], 0)
    assert check_chain(RunId(RUN), middle, rows[1:], 1) == rows[-1].checksum
    assert check_chain(RunId(RUN), middle, [], 1) == middle


@pytest.mark.parametrize(
    ("damage", "seq"),
    [
        (lambda rows: rows[1:], 1),
        (lambda rows: [rows[0], rows[2]], 2),
        (lambda rows: [rows[0], rows[0], *rows[1:]], 2),
        (lambda rows: [rows[1], rows[0], rows[2]], 1),
        (lambda rows: [rows[0], rows[1]._replace(body=b"B"), rows[2]], 2),
        (lambda rows: [rows[0], rows[1]._replace(at=0), rows[2]], 2),
        (lambda rows: [rows[0], rows[1]._replace(kind="RunFinished"), rows[2]], 2),
        (lambda rows: [rows[0], rows[1]._replace(version=9), rows[2]], 2),
        (lambda rows: [rows[0], rows[1]._replace(enc=7), rows[2]], 2),
        (lambda rows: [rows[0], rows[1]._replace(checksum=ZERO), rows[2]], 2),
        (lambda rows: [rows[0], rows[1]._replace(body=None), rows[2]], 2),
        (lambda rows: [rows[0], rows[1]._replace(at="yesterday"), rows[2]], 2),
        (lambda rows: [rows[0], rows[1]._replace(version=-1), rows[2]], 2),
    ],
)
def test_damage_names_the_run_and_the_first_bad_entry(damage: Any, seq: int) -> None:
    """Missing, repeated, swapped, altered or malformed: the error says which entry, and nothing else breaks."""
    with pytest.raises(Damaged) as damaged:
        check_chain(RunId(RUN), ZERO, damage(chain(b"a", b"b", b"c")), 0)
    assert (damaged.value.run, damaged.value.seq) == (RUN, seq)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=6), st.data())
def test_any_flipped_bit_is_seen(bodies: list[bytes], data: st.DataObject) -> None:
    """One bit in one body, wherever it is, breaks the chain at that entry."""
    rows = chain(*bodies)
    place = data.draw(st.integers(0, len(rows) - 1))
    body = bytearray(rows[place].body or b"\x00")
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    rows[place] = rows[place]._replace(body=bytes(body))
    with pytest.raises(Damaged) as damaged:
        check_chain(RunId(RUN), ZERO, rows, 0)
    assert damaged.value.seq == place + 1
