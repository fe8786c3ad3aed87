"""A wire format whose generations the provider keeps: how one is asked for, and how its events become its end."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from holdfast.agent.harness import Ended, Start
from holdfast.agent.model import Piece
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Media, Message, Usage


class Fold(Protocol):
    """A generation as far as it has been told. Takes events and resources in, and does no I/O.

    What was taken before is passed over, so that a stream may begin again at any event before the last.
    """

    @property
    def id(self) -> str:
        """Under which the provider keeps it; empty until it was told."""

    @property
    def after(self) -> str:
        """The last event that was taken; empty where none was."""

    @property
    def over(self) -> bool:
        """Whether the provider said that nothing more comes."""

    @property
    def sure(self) -> bool:
        """Whether what was told is all of it; where it is not, the provider is asked for the whole."""

    @property
    def usage(self) -> Usage:
        """What it took, as far as it is known."""

    def take(self, data: str) -> Iterator[Piece]:
        """Take one event in, and yield what it adds.

        Raises:
            ModelCut: the provider says that the stream failed.
            msgspec.DecodeError: it is no event.
        """

    def look(self, resource: bytes) -> None:
        """Take in what the provider has of it now.

        Raises:
            msgspec.DecodeError: it is none.
        """

    def ended(self) -> Ended:
        """Return how it ended; it is over, and sure."""


class Wire(Protocol):
    """One format."""

    @property
    def path(self) -> str:
        """Where generations are created; each is found below it."""

    @property
    def word(self) -> str:
        """What a generation is called, in cursors too."""

    def headers(self, key: str) -> Mapping[str, str]:
        """Return what tells the provider who asks."""

    def body(self, model: str, start: Start, messages: Sequence[Message], previous: str | None) -> bytes:
        """Return the request that creates one, in the background, to be kept and streamed."""

    def query(self, after: str | None) -> Mapping[str, str]:
        """Return what asks for the events behind one; for all of them where it is None."""

    def fold(self, asked: str, previous: str | None) -> Fold:
        """Return a fold of the generation that comes of a request."""


def address_of(part: Media) -> str:
    """Return where media are found.

    Raises:
        InvalidInput: they have no address.
    """
    if part.url is None:
        raise InvalidInput(f"media of type {part.mime} has no address; give it as a data: URL")
    return part.url
