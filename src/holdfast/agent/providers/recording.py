"""Recorded replies of models in a file: one line of JSON for each, known by the digest of its request."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.agent.model import Piece, Reply, Request
from holdfast.core.codec import digest
from holdfast.core.errors import InvalidInput


class Digests(Struct, frozen=True):
    """What a request is made from, each part by its digest, so that it can be told which part is another."""

    instructions: str
    messages: tuple[str, ...]
    tools: str
    output: str
    settings: str

    @property
    def whole(self) -> str:
        """The digest of all of it."""
        return digest(self)

    def differences(self, other: "Digests") -> list[str]:
        """Return which parts are not the same, in the order in which a model reads them."""
        names = ("instructions", "tools", "output", "settings")
        found = [name for name in names if getattr(self, name) != getattr(other, name)]
        pairs = zip(self.messages, other.messages, strict=False)
        first = next((number for number, (one, two) in enumerate(pairs, start=1) if one != two), None)
        if first is not None:
            found.append(f"message {first}")
        elif len(self.messages) != len(other.messages):
            found.append(f"{len(self.messages)} messages instead of {len(other.messages)}")
        return found


class Recorded(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    model: str
    request: Digests
    pieces: list[Piece]
    reply: Reply


def digests_of(request: Request) -> Digests:
    """Return the digests of a request; its idempotency key is another at each attempt and counts for nothing."""
    return Digests(
        instructions=digest(request.instructions),
        messages=tuple(digest(message) for message in request.messages),
        tools=digest(list(request.tools)),
        output=digest(request.output),
        settings=digest(dict(request.settings)),
    )


def lines_of(path: Path) -> Iterator[Recorded]:
    """Yield what a file holds.

    Raises:
        InvalidInput: there is no such file, or a line of it is no recorded reply.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidInput(f"no recording can be read from {path}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield msgspec.json.decode(line, type=Recorded)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"{path}, line {number}, is no recorded reply: {error}") from error
