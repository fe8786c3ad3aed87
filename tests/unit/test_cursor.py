"""Event ids: one form, read back exactly, and never silently of another store's life."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.cursor import START, Cursor, format_cursor, parse_cursor
from holdfast.core.errors import BadCursor, Conflict

numbers = st.integers(1, 10**18 - 1)
cursors = numbers.map(Cursor) | st.tuples(numbers, numbers, numbers).map(lambda place: Cursor(*place))


@given(cursors, st.integers(1, 10**9 - 1))
def test_a_cursor_comes_back_as_it_was_given_out(cursor: Cursor, epoch: int) -> None:
    """What a feed sent is what it is asked to continue from."""
    assert parse_cursor(format_cursor(cursor, epoch=epoch), epoch=epoch) == cursor


@pytest.mark.parametrize(
    ("cursor", "epoch", "text"),
    [
        (Cursor(17), 1, "17"),
        (Cursor(17, 4, 40), 1, "17:4:40"),
        (Cursor(17), 2, "17@2"),
        (Cursor(17, 4, 40), 2, "17:4:40@2"),
    ],
)
def test_the_form_of_an_event_id_never_changes(cursor: Cursor, epoch: int, text: str) -> None:
    """Ids are kept by browsers and clients across upgrades."""
    assert format_cursor(cursor, epoch=epoch) == text
    assert parse_cursor(text, epoch=epoch) == cursor


@pytest.mark.parametrize("text", [None, "", "0", 0])
def test_no_cursor_is_the_start(text: str | int | None) -> None:
    """A reader without an id gets everything."""
    assert parse_cursor(text, epoch=1) == START == Cursor(0, 0, 0)


@pytest.mark.parametrize(
    "text",
    ["x", "-1", "+1", "01", "1.0", " 1", "1 ", "1\n", "1:", "1:2", "1:2:", "1:0:1", "1:1:0", "1:2:3:4", "1@", "1@0",
     "1@x", "@1", "17:4:40@", "9" * 19, "1:2:3@1@1", "٣", "True", "1_0", -1, True],
)  # fmt: skip
def test_what_is_no_event_id_is_refused(text: str | int) -> None:
    """A malformed cursor is a typed error, never a guess and never the start."""
    with pytest.raises(BadCursor):
        parse_cursor(text, epoch=1)


@pytest.mark.parametrize(("text", "epoch"), [("17", 2), ("17@2", 1), ("17@2", 3), ("17:4:40@3", 2), ("17:4:40", 9)])
def test_an_id_of_another_epoch_is_a_conflict(text: str, epoch: int) -> None:
    """After a restore from backup, what followed may differ: no silent continuation."""
    with pytest.raises(Conflict, match="epoch"):
        parse_cursor(text, epoch=epoch)


def test_a_hostile_id_is_not_repeated_in_full() -> None:
    """The error's text stays short."""
    with pytest.raises(BadCursor) as refused:
        parse_cursor("x" * 100_000, epoch=1)
    assert len(str(refused.value)) < 200


@given(st.lists(cursors, min_size=2, max_size=6))
def test_cursors_sort_in_the_feeds_order(places: list[Cursor]) -> None:
    """An entry, then its chunks by fence and number, then the next entry."""
    assert sorted(places) == sorted(places, key=lambda place: (place.seq, place.fence, place.number))
    assert Cursor(17) < Cursor(17, 1, 1) < Cursor(17, 1, 2) < Cursor(17, 2, 1) < Cursor(18)
