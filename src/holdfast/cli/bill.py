"""What the generations of a run took, in tokens and money, as far as it is known."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, structs

from holdfast import events as ev
from holdfast.cli.wording import counted
from holdfast.client.protocol import Client
from holdfast.core.budget import dollars
from holdfast.core.ids import RunId
from holdfast.core.message import ASSISTANT
from holdfast.stream.event import Event

_FIGURES: Final = 3
"""How many figures of an amount of money are shown, where it is below a dollar."""
_DOLLAR: Final = 1_000_000_000


class Bill(Struct, kw_only=True):
    """Sums over generations, those that were cut off included; each sum is of what is known."""

    generations: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    cost: int = 0
    """In nano-USD."""
    uncounted: int = 0
    """Generations whose tokens nobody knows."""
    unpriced: int = 0
    """Generations whose price nobody knows."""

    def take(self, event: Event) -> None:
        """Add what an event says that a generation took."""
        match event:
            case ev.MessageAdded(role=role) if role == ASSISTANT:
                self._add(event.usage or {})
            case ev.HistoryCompacted():
                self._add(event.usage or {})
            case ev.StepFailed() if event.usage is not None and "input" in event.usage:
                self._add(event.usage)
            case _:
                pass

    def _add(self, usage: Mapping[str, int | None]) -> None:
        self.generations += 1
        into, out, cost = usage.get("input"), usage.get("output"), usage.get("cost")
        self.input += into or 0
        self.output += out or 0
        self.cached += usage.get("cached") or 0
        self.cost += cost or 0
        self.uncounted += into is None or out is None
        self.unpriced += cost is None

    def add(self, other: "Bill") -> None:
        """Add all of another."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def words(self) -> str:
        """It in one line; what is not known is said to be unknown, never nothing."""
        return f"{self._tokens()} · {self._money()}"

    def _tokens(self) -> str:
        if self.uncounted == self.generations:
            return "tokens unknown"
        cached = f" ({self.cached:,} cached)" if self.cached else ""
        more = f" and {counted(self.uncounted, 'generation')} unknown" if self.uncounted else ""
        return f"{self.input:,} tokens in{cached}, {self.output:,} out{more}"

    def _money(self) -> str:
        if self.unpriced == self.generations:
            return "cost unknown"
        said = dollars(_rounded(self.cost))
        return f"{said} and {counted(self.unpriced, 'generation')} of unknown cost" if self.unpriced else said

    def form(self) -> dict[str, Any]:
        """Return it for JSON; `cost` is in nano-USD, and None stands for what is not known."""
        known = structs.asdict(self)
        if self.uncounted:
            known |= {"input": None, "output": None, "cached": None}
        return known | ({"cost": None} if self.unpriced else {})


async def bill_of(client: Client, run: RunId) -> Bill:
    """Return what a run took, and all runs below it."""
    bill, waiting = Bill(), [run]
    while waiting:
        async for event in client.events(waiting.pop(), follow=False):
            bill.take(event)
            if isinstance(event, ev.ChildSpawned):
                waiting.append(RunId(event.child))
    return bill


def _rounded(nano: int) -> int:
    """Return an amount with the figures that matter: to the cent above a dollar, a few of them below."""
    digits = 2 - 9 if nano >= _DOLLAR else _FIGURES - len(str(nano))
    return round(nano, digits) if digits < 0 else nano
