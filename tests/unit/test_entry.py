"""Every kind of fact has one stored form, for ever."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.checksum import ZERO, StoredEntry, checksum
from holdfast.core.errors import Damaged, UnknownEntry
from holdfast.core.ids import RunId, id_bytes
from holdfast.core.status import Effect, Status
from tests.unit.facts import ADDED, AT, FULL, LEAST, RUN

VECTORS = json.loads((Path(__file__).parent / "entries.json").read_text("utf-8"))
COLUMNS = {"id", "run", "seq", "at"}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return every value that a field of this type can have."""
    if get_origin(kind) is UnionType:
        return st.one_of(*(values_of(member) for member in get_args(kind)))
    if get_origin(kind) is list:
        return st.lists(values_of(get_args(kind)[0]), max_size=3)
    if get_origin(kind) is dict:
        return st.dictionaries(text, values_of(get_args(kind)[1]), max_size=3)
    if kind in (Effect, Status):
        return st.sampled_from(list(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        own = [field for field in msgspec.structs.fields(kind) if field.name not in COLUMNS]
        return st.builds(kind, **{field.name: values_of(field.type) for field in own})
    plain = {
        str: text, int: integers, bool: st.booleans(), NoneType: st.none(),
        Raw: json_values.map(lambda value: Raw(msgspec.json.encode(value))),
    }  # fmt: skip
    return plain[kind]


def stored(entry: e.Entry, **other: Any) -> StoredEntry:
    """Return an entry as a row."""
    row = StoredEntry(7, entry.type, entry.version, AT, 0, e.encode_body(entry), ZERO)
    return row._replace(**other)


def plain(entry: e.Entry) -> dict[str, Any]:
    """Return an entry's own fields; null in a payload is no payload."""
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__ if name not in COLUMNS}
    return {name: decoded(value) for name, value in fields.items()}


def decoded(value: Any) -> Any:
    """Return raw JSON as data."""
    return msgspec.json.decode(value) if isinstance(value, Raw) else value


@pytest.mark.parametrize("kind", list(e.KINDS.values()), ids=list(e.KINDS))
@settings(max_examples=25)
@given(data=st.data())
def test_an_entry_comes_back_as_it_was_written(kind: type[e.Entry], data: st.DataObject) -> None:
    """Whatever a fact holds, the row gives back the same fact, with its place and its time."""
    entry = data.draw(values_of(kind))
    back = e.read_entry(RUN, stored(entry))
    assert type(back) is kind
    assert (back.run, back.seq, back.at) == (RUN, 7, AT)
    assert plain(back) == plain(entry)


def test_the_vectors_hold_every_kind_twice() -> None:
    """A new kind gets its stored form pinned here before it is released."""
    later = {type(entry) for entry in ADDED}
    kinds = {kind for kind in e.KINDS.values() if kind not in later or kind in map(type, FULL)}
    assert {type(entry) for entry in FULL} == kinds == {type(entry) for entry in LEAST}
    assert later <= set(e.KINDS.values())
    for kind in e.KINDS.values():
        facts = [entry for entry in (*FULL, *ADDED) if type(entry) is kind]
        unset = [
            field.name
            for field in msgspec.structs.fields(kind)
            if all(getattr(entry, field.name) in (field.default, [], {}) for entry in facts)
        ]
        assert set(unset) <= COLUMNS, f"{kind.__name__}: {unset}"


@pytest.mark.parametrize(
    ("entry", "vector"),
    list(zip((*FULL, *LEAST, *ADDED), VECTORS, strict=True)),
    ids=lambda value: getattr(value, "type", ""),
)
def test_a_kinds_stored_bytes_never_change(entry: e.Entry, vector: dict[str, Any]) -> None:
    """Old journals are read for ever: a change of form is a new version with an upcaster, not other bytes."""
    assert (entry.type, entry.version) == (vector["kind"], vector["version"])
    assert e.encode_body(entry) == vector["body"].encode()


def test_the_chain_of_checksums_never_changes() -> None:
    """The checksum covers run, place, time, version, kind, form and everything before, in one fixed layout."""
    head = ZERO
    for row in VECTORS:
        body = row["body"].encode()
        head = checksum(id_bytes(RunId(RUN)), row["seq"], row["at"], row["version"], row["kind"], 0, head, body)
        assert head.hex() == row["checksum"]


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["kind"])
def test_a_stored_row_reads_as_the_fact_it_was(row: dict[str, Any]) -> None:
    """The bytes on disk decide, whatever the classes have become."""
    entry = e.read_entry(
        RUN, StoredEntry(row["seq"], row["kind"], row["version"], row["at"], 0, row["body"].encode(), b"")
    )
    assert plain(entry) == plain((*FULL, *LEAST, *ADDED)[row["seq"] - 1])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"kind": "RunTeleported"}, "RunTeleported"),
        ({"version": 2}, "Emitted"),
        ({"enc": 1}, "Emitted"),
        ({"version": 0}, "Emitted"),
    ],
    ids=["kind", "version", "encoding", "no version"],
)
def test_what_a_newer_holdfast_wrote_is_refused_by_name(change: dict[str, Any], name: str) -> None:
    """An entry that cannot be read is neither skipped nor guessed at."""
    with pytest.raises(UnknownEntry) as refused:
        e.read_entry(RUN, stored(LEAST[21])._replace(**change))
    assert refused.value.kind == name
    assert name in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"step":"0/emit#1"}',
        b'{"step":1,"name":"emit"}',
        b'{"step":"s","name":"n","x":1}',
        b"\xff",
    ],
)
def test_a_body_of_another_form_is_damage(body: bytes) -> None:
    """Bytes that pass the checksum but are not the kind's form name the run and the entry."""
    with pytest.raises(Damaged) as damaged:
        e.read_entry(RUN, stored(LEAST[21], body=body))
    assert (damaged.value.run, damaged.value.seq) == (RUN, 7)


class TestUpcasting:
    """An old form is brought up to date when it is read; the stored bytes stay."""

    class Emitted(e.Entry, frozen=True, kw_only=True):
        """The third form of a kind."""

        version = 3
        step: str
        labels: list[str]

    @contextmanager
    def third_form(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Let the kind be at its third version, which can read the two before."""
        with monkeypatch.context() as patch:
            patch.setitem(e.KINDS, "Emitted", self.Emitted)
            patch.setitem(e._DECODE, "Emitted", msgspec.json.Decoder(self.Emitted).decode)
            patch.setitem(e.UPCASTERS, ("Emitted", 1), lambda old: {"step": old["step"], "label": old["name"]})
            patch.setitem(e.UPCASTERS, ("Emitted", 2), lambda old: {"step": old["step"], "labels": [old["label"]]})
            yield

    def test_an_old_version_passes_every_upcaster_in_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Version 1 is read by way of 2, and 2 straight to 3."""
        with self.third_form(monkeypatch):
            for row in (
                stored(LEAST[21]),
                stored(LEAST[21], version=2, body=b'{"step":"0/emit#1","label":"emit"}'),
                stored(LEAST[21], version=3, body=b'{"step":"0/emit#1","labels":["emit"]}'),
            ):
                entry = e.read_entry(RUN, row)
                assert isinstance(entry, self.Emitted)
                assert (entry.step, entry.labels, entry.seq, entry.at) == ("0/emit#1", ["emit"], 7, AT)

    def test_a_version_without_an_upcaster_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A gap in the chain is an error, not a guess."""
        with self.third_form(monkeypatch):
            monkeypatch.delitem(e.UPCASTERS, ("Emitted", 2))
            with pytest.raises(UnknownEntry, match="Emitted"):
                e.read_entry(RUN, stored(LEAST[21]))

    def test_an_upcaster_that_makes_another_form_is_damage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What comes out is checked like what was stored."""
        with self.third_form(monkeypatch):
            monkeypatch.setitem(e.UPCASTERS, ("Emitted", 2), lambda old: {"nothing": 1})
            with pytest.raises(Damaged):
                e.read_entry(RUN, stored(LEAST[21]))
