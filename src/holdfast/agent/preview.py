"""Pieces of a message on their way to whoever watches: none shows a part of a secret that goes on in the next."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.agent.model import CallPiece, Piece
from holdfast.engine.payload import Secrets


class Preview:
    """The pieces of one attempt; the end of one is held back while it may be the beginning of a secret.

    What is still held when the message is whole is not shown: its entry is.
    """

    def __init__(self, emit: Callable[[Any], None], secrets: Secrets) -> None:
        self._emit, self._secrets = emit, secrets
        self._held: Piece | None = None

    def say(self, piece: Piece) -> None:
        """Show a piece, and what was held back before it."""
        if not self._secrets:
            self._emit(piece)
            return
        held, self._held = self._held, None
        if held is not None and _place(held) == _place(piece):
            piece = _with(piece, _text(held) + _text(piece))
        elif held is not None:
            self._emit(held)  # something else follows, so it was no secret
        text = _text(piece)
        shown = self._secrets.settled(text)
        if shown < len(text):
            self._held = _rest(piece, text[shown:])
        if shown or piece != self._held:
            self._emit(_with(piece, text[:shown]))


def _place(piece: Piece) -> tuple[type[Piece], int]:
    return type(piece), piece.index if isinstance(piece, CallPiece) else 0


def _text(piece: Piece) -> str:
    return piece.arguments if isinstance(piece, CallPiece) else piece.text


def _rest(piece: Piece, text: str) -> Piece:
    """Return some more of what a piece is of: a call's id and name come once."""
    return CallPiece(piece.index, arguments=text) if isinstance(piece, CallPiece) else _with(piece, text)


def _with(piece: Piece, text: str) -> Piece:
    return replace(piece, arguments=text) if isinstance(piece, CallPiece) else replace(piece, text=text)
