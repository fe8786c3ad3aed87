"""No preview shows a part of a secret, however the model's words were cut into pieces."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.model import CallPiece, Piece, ReasoningPiece, TextPiece
from holdfast.agent.preview import Preview
from holdfast.engine.payload import Secrets


def secrets(values: list[str]) -> Secrets:
    """Return secrets with these values, each replaced by a mark that has no letter of theirs."""
    with pytest.MonkeyPatch.context() as environment:
        for number, value in enumerate(values):
            environment.setenv(f"_{number}", value)
        return Secrets([f"_{number}" for number in range(len(values))])


def shown(pieces: list[Piece], hidden: Secrets) -> list[Any]:
    """Return what whoever watches is shown of these pieces."""
    seen: list[Any] = []
    preview = Preview(seen.append, hidden)
    for piece in pieces:
        preview.say(piece)
    return seen


@given(
    st.lists(st.text("ab", min_size=2, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=8),
)
def test_what_is_shown_is_how_the_redacted_text_begins(values: list[str], texts: list[str]) -> None:
    """The beginning of the message as it is stored, so that the entry goes on where the preview stopped."""
    hidden = secrets(values)
    seen = "".join(hidden.redact_text(piece.text) for piece in shown([TextPiece(text) for text in texts], hidden))
    assert not any(value in seen for value in values)
    if len(values) == 1:
        assert hidden.redact_text("".join(texts)).startswith(seen)


def test_a_text_that_only_began_like_a_secret_is_shown_when_it_goes_on_otherwise() -> None:
    """Nothing is held longer than it may be one."""
    pieces: list[Piece] = [TextPiece("my hu"), TextPiece("sb"), TextPiece("and")]
    assert shown(pieces, secrets(["hush"])) == [TextPiece("my "), TextPiece("husb"), TextPiece("and")]


def test_pieces_of_different_places_are_not_joined() -> None:
    """What was thought does not go on in what is said, nor one call's arguments in another's."""
    pieces: list[Piece] = [
        ReasoningPiece("hu"),
        TextPiece("shy"),
        CallPiece(0, arguments="hu"),
        CallPiece(1, "b", "pay"),
    ]
    assert shown(pieces, secrets(["hush"])) == pieces


def test_the_name_of_a_call_is_shown_once_though_its_arguments_are_held() -> None:
    """A call is told of when it begins, and its arguments when it is known how they go on."""
    pieces: list[Piece] = [CallPiece(0, "a", "pay", "hu"), CallPiece(0, arguments="rry")]
    assert shown(pieces, secrets(["hush"])) == [CallPiece(0, "a", "pay"), CallPiece(0, arguments="hurry")]
