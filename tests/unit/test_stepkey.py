"""Step keys and run keys: different things never have one name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import checked_key
from holdfast.core.stepkey import (
    branch_of,
    branch_path,
    counted_key,
    encode_part,
    explicit_key,
    join_key,
    root_branch,
    set_path,
)

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.text("/%#.=~", min_size=1)


@pytest.mark.parametrize(
    ("part", "encoded"),
    [
        ("order-42_a.b", "order-42_a.b"), ("a/b", "a%2Fb"), ("a%2Fb", "a%252Fb"), ("a b", "a%20b"), ("~", "%7E"),
        ("é", "%C3%A9"), ("=k", "%3Dk"), ("f#1", "f%231"), ("😀", "%F0%9F%98%80"), ("\n", "%0A"),
        ("<lambda>", "%3Clambda%3E"),
    ],
)  # fmt: skip
def test_a_part_is_encoded_outside_letters_digits_and_three_signs(part: str, encoded: str) -> None:
    """The encoding is on disk for ever."""
    assert encode_part(part) == encoded


@given(text)
def test_an_encoded_part_holds_no_sign_of_structure(part: str) -> None:
    """What joins parts cannot come from inside one."""
    assert re.fullmatch(r"[A-Za-z0-9_.%-]+", encode_part(part))


@given(st.lists(text, min_size=1, max_size=4), st.lists(text, min_size=1, max_size=4))
def test_distinct_tuples_are_distinct_keys(one: list[str], other: list[str]) -> None:
    """Joining is unambiguous: ("a/b",) is not ("a", "b")."""
    assert (join_key(tuple(one)) == join_key(tuple(other))) == (one == other)


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (("onboard", "acme"), "onboard/acme"), (("a/b", "c"), "a%2Fb/c"), (("a", "b/c"), "a/b%2Fc"),
        (("n", 42), "n/42"), (("n", -1), "n/-1"), ("as it is: /é", "as it is: /é"),
    ],
)  # fmt: skip
def test_a_runs_key_never_changes(parts: str | tuple[str | int, ...], key: str) -> None:
    """A key that was given as a tuple finds its run in every later version."""
    assert join_key(parts) == key


@pytest.mark.parametrize(
    "parts", [(), ("",), ("a", ""), ("a", None), ("a", True), ("a", 1.5), ("a", b"b"), ("\ud800",)]
)
def test_a_key_with_a_part_that_is_no_text_is_refused(parts: tuple[object, ...]) -> None:
    """An empty or foreign part is never turned into something that could collide."""
    with pytest.raises(InvalidInput):
        join_key(parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["", "x" * (limits.KEY_BYTES + 1), "é" * 257, "a\x00", "\ud800"])
def test_a_key_that_cannot_be_kept_is_refused(key: str) -> None:
    """An empty key is refused, never replaced; a long one is never cut."""
    with pytest.raises(InvalidInput):
        checked_key(key)
    assert checked_key("x" * limits.KEY_BYTES) == "x" * limits.KEY_BYTES


names = st.sampled_from(["pay", "pay#1", "=pay", "1", "a/b", "gather", "%", "."])


@given(
    st.tuples(st.integers(0, 3), st.lists(st.tuples(names, st.integers(1, 3), st.integers(0, 3)), max_size=2), names),
    st.tuples(st.integers(0, 3), st.lists(st.tuples(names, st.integers(1, 3), st.integers(0, 3)), max_size=2), names),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_different_places_have_different_step_keys(one: tuple, other: tuple, nth: int, mth: int) -> None:
    """Generation, branch, name and count are each told apart, and a counted key from an explicit one."""

    def keys(place: tuple, count: int) -> tuple[str, str]:
        generation, branches, name = place
        branch = root_branch(generation)
        for set_name, set_count, index in branches:
            branch = branch_path(set_path(branch, set_name, set_count), index)
        return counted_key(branch, encode_part(name), count), explicit_key(branch, name)

    counted, explicit = keys(one, nth)
    other_counted, other_explicit = keys(other, mth)
    assert (counted == other_counted) == ((one, nth) == (other, mth))
    assert (explicit == other_explicit) == (one == other)
    assert counted not in (explicit, other_explicit)


@pytest.mark.parametrize(
    ("key", "branch"),
    [("0/pay#1", "0"), ("0/=order%2F42", "0"), ("2/gather#1.3/pay#2", "2/gather#1.3")],
)
def test_a_step_key_names_its_branch(key: str, branch: str) -> None:
    """The branch is all that stands before the last part."""
    assert branch_of(key) == branch
    assert counted_key(branch_path(set_path("2", "gather", 1), 3), "pay", 2) == "2/gather#1.3/pay#2"
    assert explicit_key("0", "order/42") == "0/=order%2F42"


@pytest.mark.parametrize("key", ["", "x" * 1022, "é" * 171, "\ud800", 7])
def test_an_explicit_key_that_cannot_be_kept_is_refused(key: str) -> None:
    """It is bounded as it is stored: encoded, with its branch."""
    with pytest.raises(InvalidInput):
        explicit_key("0", key)
    assert len(explicit_key("0", "x" * 1021)) == limits.STEP_KEY_BYTES
