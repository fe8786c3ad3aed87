"""Ids: canonical text, sixteen bytes, ordered by time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidInput
from holdfast.core.ids import RunId, born_at, checked_text, id_bytes, id_text, new_run_id, new_worker_id, run_id
from tests.unit.facts import RUN


def test_new_ids_are_canonical_distinct_and_in_order() -> None:
    """UUIDv7: an id sorts by when it was made."""
    ids = [new_run_id() for _ in range(200)]
    assert ids == sorted(set(ids))
    assert all(run_id(made) == made and made[14] == "7" for made in ids)
    assert new_worker_id() != new_worker_id()


def test_an_id_tells_when_it_was_made() -> None:
    """The time of a run that was deleted is still in its id."""
    assert born_at(RunId("019a0000-0000-7000-8000-000000000000")) == 0x019A_0000_0000 * 1000
    assert born_at(new_run_id()) <= born_at(new_run_id())


@given(st.binary(min_size=16, max_size=16))
def test_bytes_and_text_are_one_id(raw: bytes) -> None:
    """What is stored as bytes is shown as text, and back."""
    assert id_bytes(id_text(raw)) == raw
    assert run_id(id_text(raw)) == id_text(raw)


@pytest.mark.parametrize(
    "text",
    ["", "x", RUN.upper(), RUN[:-1], RUN + "0", f" {RUN}", f"{RUN}\n", RUN.replace("-", ""), None, 7, RUN.encode()],
)
def test_another_form_of_an_id_is_refused(text: str) -> None:
    """One spelling per id: what is not canonical is not looked up."""
    with pytest.raises(InvalidInput, match="is not a run id"):
        run_id(text)


def test_an_ids_bytes_never_change() -> None:
    """The checksum covers them."""
    assert id_bytes(RunId(RUN)).hex() == "0192f0c12b3c7d4e8f50617283940a1b"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("xx", "the limit is 1"),
        ("é", "is 2 bytes"),
        ("\x00", "NUL"),
        ("\ud800", "surrogate"),
        (7, "must be text"),
    ],
)
def test_text_that_cannot_be_kept_exactly_is_refused_with_its_name(text: str, why: str) -> None:
    """The error says which text, and what is wrong with it."""
    with pytest.raises(InvalidInput, match=f"the name.*{why}"):
        checked_text("the name", text, 1)
    assert checked_text("the name", "x", 1) == "x"
