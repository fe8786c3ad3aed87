"""Whose turn it is in a conversation on SQLite: numbering, calling, closing and taking back."""

from typing import Final
from zlib import crc32

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.post import CANCEL
from holdfast.core.status import Status
from holdfast.store.rows import SELECT, read_conversation, read_row
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import fetch
from holdfast.store.sqlite.lookup import Asked
from holdfast.store.turns import is_over
from holdfast.store.value import ConversationRow, RunRow

_CALLED: Final = 100
"""For how many conversations one claim looks which turn is next."""
# A damaged counter gives no number twice: the turns themselves are asked too.
_TAKE: Final = """
    INSERT INTO hf_conversations (tenant, conversation, last_turn)
    VALUES (?1, ?2, 1 + coalesce((SELECT max(turn) FROM hf_runs WHERE tenant = ?1 AND conversation = ?2), 0))
    ON CONFLICT (tenant, conversation) DO UPDATE SET last_turn = 1 + max(last_turn, excluded.last_turn - 1)
    RETURNING last_turn, active_run, over
"""
_ACTIVATE: Final = "UPDATE hf_conversations SET active_run = ? WHERE tenant = ? AND conversation = ?"
_CLOSE: Final = """
    UPDATE hf_conversations SET active_run = NULL, over = max(over, ?2), reached = max(reached, ?3)
     WHERE active_run = ?1
"""
_CALLS: Final = "active_run IS NULL AND over < last_turn"
ANY_CALLS: Final = f"SELECT 1 FROM hf_conversations WHERE {_CALLS} LIMIT 1"
_IDLE: Final = f"SELECT tenant, conversation, over FROM hf_conversations WHERE {_CALLS} LIMIT {_CALLED}"
_NEXT: Final = """
    SELECT number, turn FROM hf_runs WHERE tenant = ? AND conversation = ? AND turn > ?
       AND status NOT IN ('completed', 'failed', 'cancelled', 'quarantined') ORDER BY turn LIMIT 1
"""
_CALL: Final = "UPDATE hf_conversations SET active_run = ?, over = ? WHERE tenant = ? AND conversation = ?"
_NONE_WAITS: Final = "UPDATE hf_conversations SET over = last_turn WHERE tenant = ? AND conversation = ?"
END_ASKED: Final = f"EXISTS (SELECT 1 FROM hf_posts p WHERE p.run = {{}}.number AND p.key = '{CANCEL}')"
# A turn commits at its turn, or to come to an end that was asked for.
AT_ITS_TURN: Final = f"""
    AND (EXISTS (SELECT 1 FROM hf_conversations c WHERE c.tenant = hf_runs.tenant
                    AND c.conversation = hf_runs.conversation AND c.active_run = hf_runs.number)
         OR {END_ASKED.format("hf_runs")})
"""
_MAY_RETURN: Final = """
    r.status = 'quarantined' AND EXISTS (
        SELECT 1 FROM hf_conversations c WHERE c.tenant = r.tenant AND c.conversation = r.conversation
           AND c.active_run IS NULL AND c.reached <= r.turn)
"""
MAY_BE_ASKED: Final = f"(r.behind = 0 OR {END_ASKED.format('r')} OR {_MAY_RETURN})"
"""Of runs that something was asked of: those that may be claimed for it."""
_TURNS: Final = SELECT + "WHERE r.tenant = ? AND r.conversation = ? AND r.turn > ? ORDER BY r.turn LIMIT ?"
_COUNT: Final = "SELECT count(*) FROM hf_runs WHERE tenant = ? AND conversation = ? AND turn <= ?"
_ROW: Final = """
    SELECT (SELECT run FROM hf_runs WHERE number = c.active_run), c.last_turn, c.over, c.reached, c.metadata, c.guard,
           c.harness, c.cursor
      FROM hf_conversations c WHERE c.tenant = ? AND c.conversation = ?
"""
_ANNOTATE: Final = """
    INSERT INTO hf_conversations (tenant, conversation, last_turn, metadata, guard) VALUES (?, ?, 0, ?, ?)
    ON CONFLICT (tenant, conversation) DO UPDATE SET metadata = excluded.metadata, guard = excluded.guard
"""
_ASTRAY: Final = """
    SELECT c.conversation FROM hf_conversations c LEFT JOIN hf_runs r ON r.number = c.active_run
     WHERE c.active_run IS NOT NULL
       AND ((r.tenant, r.conversation, r.behind) IS NOT (c.tenant, c.conversation, 0)
            OR r.status IN ('completed', 'failed', 'cancelled')) LIMIT 20
"""
_FORGOTTEN: Final = """
    SELECT DISTINCT r.conversation FROM hf_runs r
      LEFT JOIN hf_conversations c ON c.tenant = r.tenant AND c.conversation = r.conversation
     WHERE r.conversation IS NOT NULL AND r.behind <> 0
       AND r.status NOT IN ('completed', 'failed', 'cancelled', 'quarantined')
       AND (r.turn > c.over AND r.turn <= c.last_turn) IS NOT TRUE LIMIT 20
"""


def take_turn(db: Db, row: RunRow) -> RunRow:
    """Return a new run as the next turn of its conversation: active at once if none is and none waits."""
    of = (row.tenant, row.conversation)
    [(turn, active, over)] = db.rows(_TAKE, of)
    free = active is None and not db.rows(_NEXT, (*of, over))
    if free:
        db.rows(_CALL, (row.number, turn - 1, *of))
    return replace(row, turn=turn, behind=not free)


def is_free(db: Db, row: RunRow) -> bool:
    """Say whether no turn of a run's conversation is open."""
    of = (row.tenant, row.conversation)
    known = db.rows("SELECT active_run, over FROM hf_conversations WHERE tenant = ? AND conversation = ?", of)
    return not known or (known[0][0] is None and not db.rows(_NEXT, (*of, known[0][1])))


def close_turn(db: Db, row: RunRow, status: Status, last_seq: int) -> None:
    """Let a turn that came to `status` be over, if that ends or sets it aside."""
    if is_over(status):
        # The number of a damaged one says nothing of how far the conversation has come.
        turn = 0 if row.damage else row.turn or 0
        db.rows(_CLOSE, (row.number, turn, turn if last_seq > 1 else 0))
        if not status.terminal:
            db.rows("UPDATE hf_runs SET behind = 1 WHERE number = ?", (row.number,))


def call_turns(db: Db) -> None:
    """Make active the next turn of the conversations that have none."""
    for tenant, conversation, over in db.rows(_IDLE):
        found = db.rows(_NEXT, (tenant, conversation, over))
        if not found:
            db.rows(_NONE_WAITS, (tenant, conversation))
            continue
        number, turn = found[0]
        db.rows(_CALL, (number, turn - 1, tenant, conversation))
        db.rows("UPDATE hf_runs SET behind = 0 WHERE number = ?", (number,))


def returned(db: Db, row: RunRow) -> RunRow | None:
    """Make a turn that was set aside active again; the row as it is if only its end was asked for, None if neither."""
    if db.rows(f"SELECT 1 FROM hf_runs r WHERE r.number = ? AND {_MAY_RETURN}", (row.number,)):
        db.rows(_ACTIVATE, (row.number, row.tenant, row.conversation))
        db.rows("UPDATE hf_runs SET behind = 0 WHERE number = ?", (row.number,))
        return replace(row, behind=False)
    asked = db.rows(f"SELECT 1 FROM hf_runs r WHERE r.number = ? AND {END_ASKED.format('r')}", (row.number,))
    return row if asked else None


def is_at_its_turn(db: Db, number: int) -> bool:
    """Say whether a turn may commit."""
    return bool(db.rows(f"SELECT 1 FROM hf_runs WHERE number = ? {AT_ITS_TURN}", (number,)))


def conversation(asked: Asked, tenant: str, name: str) -> ConversationRow | None:
    """Return where a conversation stands.

    Raises:
        Damaged: its metadata is not as it was stored.
    """
    found = fetch(asked, _ROW, (tenant, name))
    return read_conversation(tenant, name, found[0]) if found else None


def turns(asked: Asked, tenant: str, name: str, after: int, limit: int = limits.PAGE_ENTRIES) -> list[RunRow]:
    """Return a page of a conversation's turns, in order."""
    return [read_row(values) for values in fetch(asked, _TURNS, (tenant, name, after, limit))]


def count(asked: Asked, tenant: str, name: str, up_to: int) -> int:
    """Return how many turns a conversation has up to a number."""
    return int(fetch(asked, _COUNT, (tenant, name, up_to))[0][0])


def annotate(db: Db, tenant: str, name: str, metadata: bytes) -> None:
    """Keep what a caller says of a conversation."""
    db.rows(_ANNOTATE, (tenant, name, metadata, crc32(metadata)))


def astray(asked: Asked) -> list[str]:
    """Return what is wrong with conversations: an active run that is no open turn, a turn that none will call."""
    found = [f"conversation {name!r} has an active run that is no open turn of it" for [name] in fetch(asked, _ASTRAY)]
    return found + [f"conversation {name!r} has forgotten a turn that waits" for [name] in fetch(asked, _FORGOTTEN)]
