"""What a program has written so far of one exchange, folded: who it is, what it said, what it took, how it ended."""

from typing import Any, Final

import msgspec

from holdfast.agent.harnesses.coding.cli import Named, Over, Read, Spoke, Took
from holdfast.agent.model import CallPiece, Piece
from holdfast.core.message import Usage

_LAUNCHED: Final = "holdfast.launched"
_NOTHING: Final = Usage(input=0, output=0, cached=0)
_FINAL: Final = ("completed", "limit")


class Hearing:
    """The fold over the lines of a spool, of all programs that were started for one exchange."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.launches = 0
        self.session: str | None = None
        """Which session the programs named last."""
        self.text = self.model = ""
        """What was said last, and by whom."""
        self.over: Over | None = None
        """How the last program said that its turn ended; None as long as it has not."""
        self.heard = 0
        """How many events the last one wrote."""
        self._earlier = _NOTHING
        self._took: dict[str, Usage] = {}
        self._calls: dict[int, int] = {}
        self._count = -1

    @property
    def is_final(self) -> bool:
        """True where nothing would come of starting another program."""
        return self.over is not None and self.over.how in _FINAL

    def hear(self, line: bytes) -> list[Piece | Named]:
        """Take one line; return what others shall know at once. What is no event, or half of one, says nothing."""
        try:
            event: Any = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []
        if not isinstance(event, dict):
            return []
        if event.get("type") == _LAUNCHED:
            self._launch()
            return []
        self.heard += 1
        told: list[Piece | Named] = []
        for heard in self._read(event):
            match heard:
                case Named(session=session):
                    self.session = session or self.session
                    told.append(heard)
                case Spoke(text=text, model=model):
                    self.text, self.model = text, model or self.model
                case Took(id=id, usage=usage):
                    self._took[id] = _merged(self._took.get(id, Usage()), usage)
                case Over():
                    self.over = heard
                case CallPiece():
                    told.append(self._numbered(heard))
                case piece:
                    told.append(piece)
        return told

    def _launch(self) -> None:
        self._earlier = _sum(self._earlier, self._launch_usage())
        self.launches += 1
        self.over, self.heard, self._took = None, 0, {}

    def _numbered(self, piece: CallPiece) -> CallPiece:
        """Number calls through the exchange: programs begin anew with every answer of the model."""
        if piece.id:
            self._count += 1
            self._calls[piece.index] = self._count
        return msgspec.structs.replace(piece, index=self._calls.get(piece.index, 0))

    # What it took

    def usage(self, before: Usage | None) -> Usage:
        """Return what the exchange took; `before` is what its session had taken until then, None for a new one."""
        over = self.over
        if over is not None and over.usage is None and over.totals is not None:
            return _difference(over.totals, before or _NOTHING)
        total = _sum(self._earlier, self._launch_usage())
        alone = (self._earlier.input, self._earlier.output) == (0, 0)
        return Usage(total.input, total.output, total.cached, self._cost(before) if alone else None)

    def totals(self, before: Usage | None) -> Usage | None:
        """Return what the session has taken by its own account."""
        return self.over.totals if self.over is not None and self.over.totals is not None else before

    def _launch_usage(self) -> Usage:
        if self.over is not None and self.over.usage is not None:
            return self.over.usage
        total = _NOTHING
        for usage in self._took.values():
            total = _sum(total, usage)
        return total

    def _cost(self, before: Usage | None) -> int | None:
        """Return what the program says that it cost, where it is certain of what: the turn, or the whole session."""
        over = self.over
        if over is None or over.usage is None or over.totals is None or over.totals.cost is None:
            return None
        own = (over.usage.input, over.usage.output)
        since = _difference(over.totals, before) if before is not None else over.totals
        if (since.input, since.output) == own or (before is None and self.launches == 1):
            return since.cost
        return over.totals.cost if (over.totals.input, over.totals.output) == own else None


def _merged(first: Usage, later: Usage) -> Usage:
    known = {name: value for name, value in msgspec.structs.asdict(later).items() if value is not None}
    return msgspec.structs.replace(first, **known)


def _sum(first: Usage, second: Usage) -> Usage:
    """Add what two took, without the cost; what is unknown of one is unknown of both."""
    pairs = ((first.input, second.input), (first.output, second.output), (first.cached, second.cached))
    return Usage(*(a + b if a is not None and b is not None else None for a, b in pairs))


def _difference(later: Usage, before: Usage) -> Usage:
    pairs = zip(msgspec.structs.astuple(later), msgspec.structs.astuple(before), strict=True)
    found = [a - (b or 0) if a is not None and a >= (b or 0) else None for a, b in pairs]
    return Usage(*found)
