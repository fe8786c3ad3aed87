"""Callback tokens: made from a secret, so that only who was given one has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import new_run_id
from holdfast.core.token import make_token, place_of, read_token

SECRET = bytes(range(32))


def test_a_token_names_its_run_and_its_wait_and_comes_again() -> None:
    """It is made, not kept: the same of the same, another for any other."""
    run, other = new_run_id(), new_run_id()
    token = make_token(SECRET, run, "0/callback#1")
    assert read_token(SECRET, token) == (run, place_of("0/callback#1"))
    assert make_token(SECRET, run, "0/callback#1") == token
    others = {make_token(SECRET, other, "0/callback#1"), make_token(SECRET, run, "1/callback#1")}
    assert len(others | {token}) == 3
    assert token.isascii()
    assert "." not in token
    assert "/" not in token


@given(place=st.integers(4, 67), letter=st.sampled_from("Aaz09_-"))
def test_a_token_with_any_letter_changed_is_worth_nothing(place: int, letter: str) -> None:
    """Neither the run nor the wait that it names can be exchanged."""
    token = make_token(SECRET, new_run_id(), "0/callback#1")
    changed = token[:place] + letter + token[place + 1 :]
    assert (read_token(SECRET, changed) is None) == (changed != token)


@pytest.mark.parametrize("wrong", ["", "hfc_", "hfc_" + "A" * 63, "hfc_" + "A" * 64, "hfc_" + "é" * 64, "x" * 68])
def test_what_is_no_token_is_worth_nothing(wrong: str) -> None:
    """Whatever it looks like."""
    assert read_token(SECRET, wrong) is None


def test_a_token_of_another_secret_is_worth_nothing() -> None:
    """A store's tokens are its own."""
    token = make_token(SECRET, new_run_id(), "0/callback#1")
    assert read_token(bytes(32), token) is None
