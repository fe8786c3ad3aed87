"""A model that writes down what another one answers."""

from os import PathLike
from pathlib import Path

import msgspec

from holdfast.agent.cost import price_of
from holdfast.agent.model import Model, Piece, Reply, Request, Say
from holdfast.agent.providers.find import find
from holdfast.agent.providers.recording import Recorded, digests_of
from holdfast.core.message import Usage


class Recorder:
    """Asks `model` and adds each whole reply to the file at `path`, for a `Player`; failures are not written down.

    The file holds what the model said and digests of what it was asked, and no key.
    """

    def __init__(self, model: Model | str, path: str | PathLike[str]) -> None:
        self._model = find(model) if isinstance(model, str) else model
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"Recorder({self._model!r}, {str(self._path)!r})"

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def lane(self) -> str:
        return self._model.lane

    def cost_of(self, usage: Usage) -> int | None:
        """Return what so much would cost by the recorded model's prices."""
        return price_of(self._model, usage)

    async def ask(self, request: Request, say: Say) -> Reply:
        pieces: list[Piece] = []

        def heard(piece: Piece) -> None:
            pieces.append(piece)
            say(piece)

        reply = await self._model.ask(request, heard)
        line = Recorded(model=self.name, request=digests_of(request), pieces=pieces, reply=reply)
        # One write at the end of the file, so that recorders in several processes do not mix their lines.
        with self._path.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")
        return reply
