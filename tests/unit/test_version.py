"""The word in a run's row on the code that may drive it."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.version import Need, Served, admits, adopted, begun, left_to_others, refusing

codes = st.text("abc.=1| ", min_size=1, max_size=6).map(lambda text: text.replace("|", "")).filter(bool)
needs = st.builds(
    Need,
    exactly=st.none() | codes,
    at_least=st.integers(0, 99),
    refused=st.lists(codes, max_size=4, unique=True).map(tuple),
    left=st.booleans(),
).map(lambda need: need if need.exactly is None else Need(need.exactly, 0, need.refused, need.left))


@given(needs)
def test_a_word_says_what_it_was_made_of(need: Need) -> None:
    """Whatever versions are called, the row gives back what was put there."""
    assert Need.read(need.word) == need


def test_an_empty_word_admits_everybody() -> None:
    """A run that nobody has driven is anybody's."""
    assert begun("v1", 0, pin=False) == ""
    assert admits("", "anything")
    assert admits("", Served("t", code="v", place=0))


@given(needs, codes)
def test_who_refused_a_run_is_not_admitted_again_and_nobody_else_is_shut_out_by_that(need: Need, token: str) -> None:
    """One more refusal changes nothing for the others."""
    word = refusing(need.word, token)
    assert not admits(word, token)
    for other in ("x", "y"):
        assert admits(word, other) == need.admits(other)


def test_only_the_last_refusals_are_remembered() -> None:
    """The row stays small, however often programs are started that diverge."""
    word = begun("v", 3, pin=False)
    for number in range(40):
        word = refusing(word, f"t{number}")
    need = Need.read(word)
    assert (need.at_least, len(need.refused), need.refused[-1]) == (3, 16, "t39")


def test_the_version_that_has_a_run_and_later_ones_are_admitted() -> None:
    """Forward only; a pin is not moved by whoever drives it."""
    word = adopted(begun("v1", 1, pin=False), 5)
    assert [admits(word, Served("t", place=place)) for place in (4, 5, 6)] == [False, True, True]
    pinned = begun("v1", 1, pin=True)
    assert adopted(pinned, 5) == pinned
    assert [admits(pinned, Served("t", code=code, place=9)) for code in ("v1", "v2")] == [True, False]


def test_rows_of_before_are_read_as_they_were_meant() -> None:
    """A word without a need, as older rows have it, names refusals only."""
    assert Need.read("|v1|v2|") == Need(refused=("v1", "v2"))
    assert not admits("|v1|v2|", "v1")
    assert admits("|v1|v2|", Served("v3", place=1))


@given(needs, codes)
def test_a_run_that_was_left_admits_whom_it_admitted_and_is_no_longer_left_once_it_is_driven(
    need: Need, code: str
) -> None:
    """Only what is asked of it is kept for them; the mark is a word's that older releases read as they did."""
    word = left_to_others(need.word)
    assert Need.read(word).left
    assert admits(word, code) == need.admits(code)
    assert not Need.read(adopted(word, 5)).left
