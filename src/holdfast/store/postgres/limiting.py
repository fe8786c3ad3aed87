"""Limits on PostgreSQL: slots are asked for, given back and handed on by one call of a function for many."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.core.ids import RunId, id_text
from holdfast.core.limit import Limit, look_again_at
from holdfast.store.bell import Bells
from holdfast.store.postgres.arrays import Integers, Texts
from holdfast.store.value import Granted, Lease, LeaseLost, LimitRow, Queued, Turn

Row = tuple[Any, ...]
_TURNS: Final = f"SELECT * FROM hf_turns({', '.join(f'${n}' for n in range(1, 15))}, $15::bigint)"
ROWS: Final = """
    SELECT l.name, l.at_once, l.starts, l.span,
           (SELECT count(*) FROM hf_tickets t
             WHERE t.name = l.name AND t.granted_at IS NOT NULL AND hf_lives(t.run, t.fence)),
           (SELECT count(*) FROM hf_tickets t
             WHERE t.name = l.name AND t.granted_at IS NULL AND hf_lives(t.run, t.fence))
      FROM hf_limits l ORDER BY l.name
"""


class TurnOp:
    """A step's question for a slot, or one that is given back, or a limit under which something became free."""

    __slots__ = ("_names", "again", "asked", "freed", "given", "run", "served", "woken")
    alone: Final = False

    def __init__(
        self,
        run: RunId | None,
        *,
        asked: tuple[Lease, int | None, str, Limit] | None = None,
        freed: tuple[Lease, str] | None = None,
        served: Callable[[], Sequence[str | None]] | None = None,
        given: int | None = None,
    ) -> None:
        self.run, self.asked, self.freed, self.served, self.given = run, asked, freed, served, given
        self._names: Sequence[str | None] | None = None
        self.woken: list[RunId] = []
        """The runs that should look at their places, once this is on disk."""

    def names(self) -> Sequence[str | None]:
        """Return the limits to serve, settled when it is first sent; until then others may join."""
        if self._names is None:
            self._names = self.served() if self.served is not None else ()
        return self._names

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake those whose turn it is."""
        for run in self.woken:
            bells.ring(run)


def turn_call(ops: Sequence[TurnOp]) -> tuple[str, list[Any]]:
    """Return the statement that does all of these."""
    asked = [
        (limit.name, limit.at_once, limit.starts, limit.span, lease.row.number, owner, lease.fence, step,
         lease.row.tenant, limit.priority)
        for lease, owner, step, limit in (op.asked for op in ops if op.asked is not None)
    ]  # fmt: skip
    freed = [(lease.row.number, lease.fence, step) for lease, step in (op.freed for op in ops if op.freed is not None)]
    served = [name for op in ops for name in op.names()]
    kinds = (Texts, Integers, Integers, Integers, Integers, Integers, Integers, Texts, Texts, Integers)
    columns = list(zip(*asked, strict=True)) if asked else [()] * len(kinds)
    of_freed = list(zip(*freed, strict=True)) if freed else [(), (), ()]
    return _TURNS, [
        *(kind(column) for kind, column in zip(kinds, columns, strict=True)),
        Integers(of_freed[0]), Integers(of_freed[1]), Texts(of_freed[2]), Texts(served), ops[0].given,
    ]  # fmt: skip


def turn_outcomes(ops: Sequence[TurnOp], rows: Sequence[Row]) -> list[Any]:
    """Return how each step stands; what was given back or served has no outcome."""
    askers = [place for place, op in enumerate(ops) if op.asked is not None]
    outcomes: list[Any] = [None] * len(ops)
    woken: list[RunId] = []
    for place, state, start_at, at, run in rows:
        if place is None:
            woken.append(id_text(run))
        else:
            outcomes[askers[place - 1]] = _turn(state, start_at, at)
    ops[0].woken = woken
    return outcomes


def _turn(state: str, start_at: int | None, at: int) -> Turn:
    match state:
        case "granted":
            return Granted()
        case "lost":
            return LeaseLost()
        case _:
            return Queued(look_again_at(at, first=state == "first", start_at=start_at))


def limit_row(values: Row) -> LimitRow:
    """Return a limit, from the columns of `ROWS`."""
    name, at_once, starts, span, held, queued = values
    return LimitRow(name=name, at_once=at_once, starts=starts, span=span, held=held, queued=queued)


KINDS: Final[tuple[tuple[type[Any], Any, Any], ...]] = ((TurnOp, turn_call, turn_outcomes),)
