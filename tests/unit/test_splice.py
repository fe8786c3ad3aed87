"""A transcript is stored as what changed, and comes back as it was."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.splice import packed, spliced, splices

MESSAGES = st.lists(st.integers(0, 3), max_size=12)


def encoded(place: int, message: Any) -> bytes:
    """Return a message as JSON."""
    return json.dumps(message).encode()


@given(MESSAGES, MESSAGES, st.integers(66, 90))
def test_what_changed_turns_the_old_list_into_the_new_one(old: list[int], new: list[int], most: int) -> None:
    """Whatever was edited, cut or added, in however many bodies it is stored, and each says how long the list is."""
    messages = list(old)
    for grown, body in packed(splices(old, new), encoded, most):
        spliced(messages, json.loads(body))
        assert len(messages) == len(old) + grown
        assert len(body) <= most + 64
    assert messages == new


@pytest.mark.parametrize(
    ("old", "new", "stored"),
    [
        ("abcd", "abcdef", "ef"),
        ("abcd", "abcd", ""),
        ("abcdef", "abc", ""),
        ("abcd", "Xbcde", "Xe"),
        ("abcdefgh", "aXgh", "X"),
        ("abcdefgh", "abXdefYhi", "XYi"),
        ("abcd", "wxyz", "wxyz"),
    ],
)
def test_only_messages_that_changed_are_stored(old: str, new: str, stored: str) -> None:
    """A list that grew, one whose first message is another each time, one that was summed up: none is written whole."""
    assert "".join(message for change in splices(old, new) for message in change.added) == stored


@pytest.mark.parametrize("change", [[5, 0, ["x"]], [0, 4, []], [-1, 0, ["x"]], [0, 1, "x"]])
def test_a_change_of_another_list_is_refused(change: list[Any]) -> None:
    """What does not fit is damage, never something near it."""
    with pytest.raises(ValueError, match="does not fit"):
        spliced(["a", "b", "c"], [change])
