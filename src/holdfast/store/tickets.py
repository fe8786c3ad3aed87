"""Limits in memory: who holds a slot, who waits for one, and when steps started; the documentation of the SQL ones."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from holdfast.core.ids import Fence, RunId
from holdfast.core.limit import Limit, look_again_at
from holdfast.store.value import Granted, Lease, LimitRow, Queued


class _Ticket(Struct):
    run: RunId
    step: str
    fence: Fence
    name: str
    number: int
    tenant: str
    priority: int
    granted: bool = False


class Tickets:
    """The limits of one store. `lives` says whether a run is still under that lease: other tickets do not count."""

    def __init__(self, lives: Callable[[RunId, Fence], bool]) -> None:
        self._lives = lives
        self._limits: dict[str, Limit] = {}
        self._tickets: dict[tuple[RunId, str], _Ticket] = {}
        self._starts: dict[str, list[int]] = {}
        self._asked = 0

    def acquire(self, lease: Lease, step: str, limit: Limit, now: int) -> tuple[Granted | Queued, set[RunId]]:
        """Return a step's slot or place, and the runs that should look at theirs."""
        name, row = limit.name, lease.row
        self._limits[name] = limit
        ticket = self._tickets.get((row.run, step))
        if ticket is None or (ticket.fence, ticket.name) != (lease.fence, name):
            self._asked += 1
            ticket = _Ticket(row.run, step, lease.fence, name, self._asked, row.tenant, limit.priority)
            self._tickets[row.run, step] = ticket
        woken = self._serve(name, now) - {row.run}
        if ticket.granted:
            return Granted(), woken
        full = limit.at_once is not None and len(self._of(name, granted=True)) >= limit.at_once
        start_at = None if full else self._start_at(name)
        return Queued(look_again_at(now, first=self._first(name) is ticket, start_at=start_at)), woken

    def free(self, run: RunId, fence: Fence, steps: Iterable[str], now: int) -> set[RunId]:
        """Take back what steps hold or wait for; return the runs that should look."""
        gone = [ticket for step in steps if (ticket := self._tickets.get((run, step))) and ticket.fence == fence]
        for ticket in gone:
            del self._tickets[run, ticket.step]
        return {run for name in {ticket.name for ticket in gone} for run in self._serve(name, now, moved=True)}

    def serve(self, now: int) -> set[RunId]:
        """Give to those who wait what dead leases held; return the runs that should look."""
        return {run for name in self._limits for run in self._serve(name, now)}

    def rows(self) -> Sequence[LimitRow]:
        """Return every limit, by name."""
        return [
            LimitRow(
                name=name, at_once=limit.at_once, starts=limit.starts, span=limit.span,
                held=len(self._of(name, granted=True)), queued=len(self._of(name, granted=False)),
            )
            for name, limit in sorted(self._limits.items())
        ]  # fmt: skip

    def _of(self, name: str, *, granted: bool) -> list[_Ticket]:
        tickets = [ticket for ticket in self._tickets.values() if (ticket.name, ticket.granted) == (name, granted)]
        return [ticket for ticket in tickets if self._lives(ticket.run, ticket.fence)]

    def _first(self, name: str) -> _Ticket | None:
        held = Counter(ticket.tenant for ticket in self._of(name, granted=True))
        waiting = self._of(name, granted=False)
        return min(waiting, key=lambda t: (-t.priority, held[t.tenant], t.number)) if waiting else None

    def _start_at(self, name: str) -> int | None:
        """Return when the next start is allowed by the rate; None: whenever there is a slot."""
        limit, starts = self._limits[name], self._starts.get(name, [])
        return starts[-limit.starts] + limit.span if limit.starts is not None and len(starts) >= limit.starts else None

    def _serve(self, name: str, now: int, *, moved: bool = False) -> set[RunId]:
        """Grant what may be granted now. If anything moved, whoever is first now should look too."""
        dead = [key for key, t in self._tickets.items() if t.name == name and not self._lives(t.run, t.fence)]
        for key in dead:
            del self._tickets[key]
        woken: set[RunId] = set()
        limit = self._limits[name]
        # A clock that was set back must not hold the limit up for longer than its span.
        self._starts[name] = [min(at, now) for at in self._starts.get(name, [])][-(limit.starts or 1) :]
        while (first := self._first(name)) is not None:
            full = limit.at_once is not None and len(self._of(name, granted=True)) >= limit.at_once
            if full or (self._start_at(name) or now) > now:
                break
            first.granted = True
            self._starts[name].append(now)
            woken.add(first.run)
        if first is not None and (moved or dead or woken):
            woken.add(first.run)
        return woken
