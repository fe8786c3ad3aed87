"""A model that answers from what was written down, and from nothing else."""

from collections import defaultdict
from os import PathLike
from pathlib import Path

from holdfast.agent.model import ModelRefused, Reply, Request, Say
from holdfast.agent.providers.recording import Digests, Recorded, digests_of, lines_of
from holdfast.core.message import Usage


class Player:
    """Plays a `Recorder`'s file: the same request gets the same reply, piece by piece.

    A request that was recorded several times gets its replies in that order, and the last one from then on.

    Raises:
        InvalidInput: the file cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self._lines: dict[str, list[Recorded]] = defaultdict(list)
        self._name = f"player:{self._path.name}"
        for line in lines_of(self._path):
            self._lines[line.request.whole].append(line)
            self._name = line.model

    def __repr__(self) -> str:
        return f"Player({str(self._path)!r})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def lane(self) -> str:
        return f"player {self._path}"

    def cost_of(self, usage: Usage) -> int:
        """Playing costs nothing; what a reply cost once stands in it."""
        return 0

    async def ask(self, request: Request, say: Say) -> Reply:
        asked = digests_of(request)
        recorded = self._lines.get(asked.whole)
        if recorded is None:
            raise ModelRefused(f"{self._path} has no reply to this request: {self._why(asked)}")
        line = recorded.pop(0) if len(recorded) > 1 else recorded[0]
        for piece in line.pieces:
            say(piece)
        return line.reply

    def _why(self, asked: Digests) -> str:
        """Return how the request differs from the one most like it."""
        known = [lines[0].request for lines in self._lines.values()]
        if not known:
            return "it is empty"
        nearest = min(known, key=lambda request: len(asked.differences(request)))
        return f"the nearest that was recorded differs in its {', '.join(asked.differences(nearest))}"
