"""Limits on SQLite: slots, the queue for them, and the starts that are counted, all under the one write lock."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import apsw

from holdfast.core.ids import Fence, RunId, id_text
from holdfast.core.limit import Limit, look_again_at
from holdfast.store.bell import Word
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import fetch
from holdfast.store.value import Granted, Lease, LeaseLost, LimitRow, Queued, Turn

Connection = apsw.Connection | apsw.Cursor
_LIVE: Final = "(r.owner IS NOT NULL AND r.fence = t.fence)"
_LEASED: Final = "SELECT 1 FROM hf_runs WHERE number = ? AND owner = ? AND fence = ?"
_DECLARE: Final = """
    INSERT INTO hf_limits (name, at_once, starts, span, kept, asked, started) VALUES (?1, ?2, ?3, ?4, ?5, 0, 0)
    ON CONFLICT (name) DO UPDATE SET at_once = ?2, starts = ?3, span = ?4, kept = max(kept, ?5)
     WHERE (at_once, starts, span) IS NOT (?2, ?3, ?4)
"""
_NUMBER: Final = "UPDATE hf_limits SET asked = asked + 1 WHERE name = ? RETURNING asked"
_ASK: Final = """
    INSERT OR REPLACE INTO hf_tickets (run, step, fence, name, number, tenant, priority) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_OWN: Final = f"""
    SELECT t.granted_at FROM hf_tickets t JOIN hf_runs r ON r.number = t.run
     WHERE t.run = ? AND t.step = ? AND t.fence = ? AND t.name = ? AND {_LIVE}
"""
_LIMIT: Final = "SELECT at_once, starts, span, started FROM hf_limits WHERE name = ?"
_HELD: Final = f"""
    SELECT t.run, t.step, t.tenant, coalesce({_LIVE}, 0) FROM hf_tickets t LEFT JOIN hf_runs r ON r.number = t.run
     WHERE t.name = ? AND t.granted_at IS NOT NULL
"""
# The first ticket of the tenant that comes first by name, among those that wait with the highest priority.
_FIRST: Final = f"""
    SELECT t.run, t.step, t.fence, t.tenant, r.run, coalesce({_LIVE}, 0), t.number, t.priority
      FROM hf_tickets t LEFT JOIN hf_runs r ON r.number = t.run
     WHERE t.name = ?1 AND t.granted_at IS NULL
       AND t.priority = (SELECT max(q.priority) FROM hf_tickets q WHERE q.name = ?1 AND q.granted_at IS NULL)
     ORDER BY t.tenant, t.number LIMIT 1
"""
# The same of the tenant that comes after another: the others' are found without walking the queue.
_AFTER: Final = f"""
    SELECT t.run, t.step, t.fence, t.tenant, r.run, coalesce({_LIVE}, 0), t.number, t.priority
      FROM hf_tickets t LEFT JOIN hf_runs r ON r.number = t.run
     WHERE t.name = ?1 AND t.granted_at IS NULL AND t.priority = ?2 AND t.tenant > ?3
     ORDER BY t.tenant, t.number LIMIT 1
"""
_START_AT: Final = "SELECT at FROM hf_starts WHERE name = ? AND number = ?"
# A clock that was set back must not hold a limit up for longer than its span.
_SET_BACK: Final = "UPDATE hf_starts SET at = ?1 WHERE name = ?2 AND at > ?1"
_GRANT: Final = "UPDATE hf_tickets SET granted_at = ? WHERE run = ? AND step = ?"
_COUNT: Final = "UPDATE hf_limits SET started = started + 1 WHERE name = ? RETURNING started, kept"
_START: Final = "INSERT OR REPLACE INTO hf_starts (name, number, at) VALUES (?, ?, ?)"
_FORGET: Final = "DELETE FROM hf_starts WHERE name = ? AND number <= ?"
_DROP: Final = "DELETE FROM hf_tickets WHERE run = ? AND step = ?"
# Who waited for a worker that died waited beside many others.
_DROP_DEAD: Final = f"""
    DELETE FROM hf_tickets WHERE (run, step) IN (
        SELECT t.run, t.step FROM hf_tickets t LEFT JOIN hf_runs r ON r.number = t.run
         WHERE t.name = ? AND t.granted_at IS NULL AND NOT coalesce({_LIVE}, 0))
"""
_FREE: Final = """
    DELETE FROM hf_tickets WHERE run = ? AND step = ? AND fence = ? RETURNING name, tenant, granted_at IS NOT NULL
"""
_WAITED_FOR: Final = "SELECT DISTINCT name FROM hf_tickets WHERE granted_at IS NULL"
_GRANTED: Final = f"""
    SELECT r.run FROM hf_tickets t JOIN hf_runs r ON r.number = t.run WHERE t.granted_at IS NOT NULL AND {_LIVE}
"""
_ROWS: Final = f"""
    SELECT l.name, l.at_once, l.starts, l.span,
           (SELECT count(*) FROM hf_tickets t JOIN hf_runs r ON r.number = t.run
             WHERE t.name = l.name AND t.granted_at IS NOT NULL AND {_LIVE}),
           (SELECT count(*) FROM hf_tickets t JOIN hf_runs r ON r.number = t.run
             WHERE t.name = l.name AND t.granted_at IS NULL AND {_LIVE})
      FROM hf_limits l ORDER BY l.name
"""


class _Head(NamedTuple):
    """The ticket that is next."""

    run: int
    step: str
    fence: int
    tenant: str
    id: bytes | None
    lives: int
    number: int
    priority: int

    def is_of(self, lease: Lease, step: str) -> bool:
        return (self.run, self.step) == (lease.row.number, step)


class _Standing:
    """How a limit stands for a transaction that has looked, as long as that goes on."""

    __slots__ = ("at_once", "behind", "held", "span", "started", "starts")

    def __init__(self, at_once: int | None, starts: int | None, span: int, started: int, held: Counter[str]) -> None:
        self.at_once, self.starts, self.span, self.started, self.held = at_once, starts, span, started, held
        self.behind: _Head | None = None
        """Who is first while every slot is taken; whoever comes after with no more right stands behind."""

    @property
    def is_full(self) -> bool:
        return self.at_once is not None and self.held.total() >= self.at_once

    def says(self, limit: Limit) -> bool:
        return (self.at_once, self.starts, self.span) == (limit.at_once, limit.starts, limit.span)


class _Served(NamedTuple):
    """How a limit stands once all that may be granted is."""

    words: list[Word]
    """What is to be told to those whose turn it is, and to who is next."""
    first: _Head | None
    start_at: int | None
    """When the rate allows the next start, if it is that which is waited for."""


def acquire(db: Db, lease: Lease, owner: int | None, step: str, limit: Limit, now: int) -> tuple[Turn, list[Word]]:
    """Return a step's slot or place, and what is to be told to others."""
    row, name = lease.row, limit.name
    if owner is None or not db.rows(_LEASED, (row.number, owner, lease.fence)):
        return LeaseLost(), []
    known: _Standing | None = db.limits.get(name)
    if known is None or not known.says(limit):
        db.rows(_DECLARE, (name, limit.at_once, limit.starts, limit.span, limit.starts or 0))
        known = db.limits.pop(name, None)
    own = (row.number, step, lease.fence, name)
    found = db.rows(_OWN, own)
    if not found:
        [(number,)] = db.rows(_NUMBER, (name,))
        db.rows(_ASK, (*own, number, row.tenant, limit.priority))
        first = known.behind if known is not None else None
        if first is not None and first.tenant == row.tenant and first.priority >= limit.priority:
            return Queued(look_again_at(now, first=False, start_at=None)), []
    served = _serve(db, name, now)
    mine = [word for word in served.words if word[:2] == (row.run, step)]
    others = [word for word in served.words if word[:2] != (row.run, step)]
    if (found and found[0][0] is not None) or any(isinstance(word[3], Granted) for word in mine):
        return Granted(), others
    is_first = served.first is not None and served.first.is_of(lease, step)
    return Queued(look_again_at(now, first=is_first, start_at=served.start_at)), others


def has(connection: Connection, lease: Lease, step: str, name: str) -> bool:
    """Say whether a step has a slot."""
    own = fetch(connection, _OWN, (lease.row.number, step, lease.fence, name))
    return bool(own) and own[0][0] is not None


def look(connection: Connection, lease: Lease, step: str, name: str, now: int) -> Turn | None:
    """Return how a step that asked stands; None when only whoever writes can tell: it is gone, or may have its turn."""
    own = fetch(connection, _OWN, (lease.row.number, step, lease.fence, name))
    if not own:
        return None
    if own[0][0] is not None:
        return Granted()
    [(at_once, starts, span, started)] = fetch(connection, _LIMIT, (name,))
    held = _held(connection, name)
    full = at_once is not None and held.total() >= at_once
    start_at = None if full else _start_at(connection, name, starts, span, started)
    first = _head(connection, name, held)
    if first is None or (not first.lives) or (not full and (start_at or now) <= now):
        return None
    return Queued(look_again_at(now, first=first.is_of(lease, step), start_at=start_at))


def free(db: Db, run: int, fence: int, steps: Iterable[str], now: int) -> list[Word]:
    """Take back what steps of a run that is held hold or wait for; return what is to be told."""
    names: dict[str, None] = {}
    for step in steps:
        for name, tenant, granted in db.rows(_FREE, (run, step, fence)):
            known: _Standing | None = db.limits.get(name)
            if granted and known is not None:
                known.held[tenant] -= 1
            names[name] = None
    return [word for name in names for word in _serve(db, name, now, moved=True).words]


def give_up(db: Db, lease: Lease, step: str, now: int) -> list[Word]:
    """Take back what a step holds or waits for, whether its run is held or not; return what is to be told."""
    db.limits.clear()  # a slot that did not count must not be counted off
    return free(db, lease.row.number, lease.fence, [step], now)


def serve(db: Db, now: int) -> list[Word]:
    """Give to those who wait what dead leases held; return what is to be told."""
    db.limits.clear()
    return [word for (name,) in db.rows(_WAITED_FOR) for word in _serve(db, name, now).words]


def turns(connection: Connection, names: Iterable[str]) -> set[RunId]:
    """Return the runs that hold a slot, and those that are next under these limits."""
    found = {id_text(run) for (run,) in fetch(connection, _GRANTED)}
    heads = [_head(connection, name, _held(connection, name)) for name in names]
    return found | {id_text(head.id) for head in heads if head is not None and head.id is not None}


def rows(connection: Connection) -> Sequence[LimitRow]:
    """Return every limit, by name."""
    return [
        LimitRow(name=name, at_once=at_once, starts=starts, span=span, held=held, queued=queued)
        for name, at_once, starts, span, held, queued in fetch(connection, _ROWS)
    ]


def _held(connection: Connection, name: str) -> Counter[str]:
    """Return how many slots each tenant holds."""
    return Counter(tenant for _, _, tenant, lives in fetch(connection, _HELD, (name,)) if lives)


def _head(connection: Connection, name: str, held: Counter[str]) -> _Head | None:
    """Return the ticket that is next: of the tenant that holds fewest slots, and of several such the oldest."""
    heads: list[_Head] = []
    found = fetch(connection, _FIRST, (name,))
    while found:
        heads.append(_Head(*found[0]))
        found = fetch(connection, _AFTER, (name, heads[-1].priority, heads[-1].tenant))
    return min(heads, key=lambda head: (held[head.tenant], head.number), default=None)


def _start_at(connection: Connection, name: str, starts: int | None, span: int, started: int) -> int | None:
    """Return when the next start is allowed by the rate; None: whenever there is a slot."""
    if starts is None:
        return None
    found = fetch(connection, _START_AT, (name, started + 1 - starts))
    return found[0][0] + span if found else None


def _standing(db: Db, name: str, now: int) -> tuple[_Standing, bool]:
    """Return how a limit stands, and whether the dead held any of it until now."""
    known: _Standing | None = db.limits.get(name)
    if known is not None:
        return known, False
    found = db.rows(_HELD, (name,))
    dead = [(run, step) for run, step, _, lives in found if not lives]
    for ticket in dead:
        db.rows(_DROP, ticket)
    [(at_once, starts, span, started)] = db.rows(_LIMIT, (name,))
    if starts is not None:
        db.rows(_SET_BACK, (now, name))
    held = Counter(tenant for _, _, tenant, lives in found if lives)
    known = db.limits[name] = _Standing(at_once, starts, span, started, held)
    return known, bool(dead)


def _serve(db: Db, name: str, now: int, *, moved: bool = False) -> _Served:
    """Grant what may be granted now. If anything moved, whoever is first now is told so."""
    limit, dropped = _standing(db, name, now)
    moved = moved or dropped
    words: list[Word] = []
    start_at: int | None = None
    limit.behind = None
    while (head := _head(db.cursor, name, limit.held)) is not None:
        if not head.lives or head.id is None:
            if not db.changed(_DROP, (head.run, head.step)):
                break  # an index that leads nowhere: `check` tells of it
            db.rows(_DROP_DEAD, (name,))
            moved = True
            continue
        if limit.is_full:
            start_at, limit.behind = None, head
            break
        start_at = _start_at(db.cursor, name, limit.starts, limit.span, limit.started)
        if (start_at or now) > now:
            break
        db.rows(_GRANT, (now, head.run, head.step))
        limit.held[head.tenant] += 1
        if limit.starts is not None:
            limit.started += _count_start(db, name, now)
        words.append(_word(head, Granted()))
    if head is not None and head.id is not None and (moved or words):
        words.append(_word(head, Queued(look_again_at(now, first=True, start_at=start_at))))
    return _Served(words, head, start_at)


def _word(head: _Head, turn: Turn) -> Word:
    assert head.id is not None
    return id_text(head.id), head.step, Fence(head.fence), turn


def _count_start(db: Db, name: str, now: int) -> int:
    [(started, kept)] = db.rows(_COUNT, (name,))
    db.rows(_START, (name, started, now))
    db.rows(_FORGET, (name, started - kept))
    return 1
