"""Whose turn it is in a conversation on PostgreSQL: the statements, and what is read of it."""

from typing import Final
from zlib import crc32

from holdfast.core.post import CANCEL
from holdfast.store.postgres.reading import Reader
from holdfast.store.rows import SELECT, read_conversation, read_row
from holdfast.store.value import ConversationRow, RunRow

CALLED: Final = 100
"""For how many conversations one claim looks which turn is next."""
CALLS: Final = "EXISTS (SELECT 1 FROM hf_conversations c WHERE c.active_run IS NULL AND c.over < c.last_turn)"
"""True when there is a conversation whose next turn waits to be called."""
CALL: Final = "SELECT hf_call_turns($1)"
RETURN: Final = "SELECT hf_return_turn($1)"
MAY_BE_ASKED: Final = f"""(
    r.behind = 0 OR EXISTS (SELECT 1 FROM hf_posts p WHERE p.run = r.number AND p.key = '{CANCEL}')
    OR r.status = 'quarantined' AND EXISTS (
        SELECT 1 FROM hf_conversations c WHERE c.tenant = r.tenant AND c.conversation = r.conversation
           AND c.active_run IS NULL AND c.reached <= r.turn))
"""
"""Of runs that something was asked of: those that may be claimed for it."""
_TURNS: Final = f"{SELECT} WHERE r.tenant = $1 AND r.conversation = $2 AND r.turn > $3 ORDER BY r.turn LIMIT $4"
_COUNT: Final = "SELECT count(*) FROM hf_runs WHERE tenant = $1 AND conversation = $2 AND turn <= $3"
_ROW: Final = """
    SELECT (SELECT run FROM hf_runs WHERE number = c.active_run), c.last_turn, c.over, c.reached, c.metadata, c.guard,
           c.harness, c.cursor
      FROM hf_conversations c WHERE c.tenant = $1 AND c.conversation = $2
"""
_ANNOTATE: Final = """
    INSERT INTO hf_conversations (tenant, conversation, last_turn, metadata, guard) VALUES ($1, $2, 0, $3, $4)
    ON CONFLICT (tenant, conversation) DO UPDATE SET metadata = excluded.metadata, guard = excluded.guard
"""
_ASTRAY: Final = """
    SELECT c.conversation FROM hf_conversations c LEFT JOIN hf_runs r ON r.number = c.active_run
     WHERE c.active_run IS NOT NULL
       AND ((r.tenant, r.conversation, r.behind) IS DISTINCT FROM (c.tenant, c.conversation, 0::smallint)
            OR r.status IN ('completed', 'failed', 'cancelled')) LIMIT 20
"""
_FORGOTTEN: Final = """
    SELECT DISTINCT r.conversation FROM hf_runs r
      LEFT JOIN hf_conversations c ON c.tenant = r.tenant AND c.conversation = r.conversation
     WHERE r.conversation IS NOT NULL AND r.behind <> 0
       AND r.status NOT IN ('completed', 'failed', 'cancelled', 'quarantined')
       AND (r.turn > c.over AND r.turn <= c.last_turn) IS NOT TRUE LIMIT 20
"""


async def conversation(reader: Reader, tenant: str, name: str) -> ConversationRow | None:
    """Return where a conversation stands.

    Raises:
        Damaged: its metadata is not as it was stored.
    """
    found = await reader.rows(_ROW, [tenant, name])
    return read_conversation(tenant, name, found[0]) if found else None


async def turns(reader: Reader, tenant: str, name: str, after: int, limit: int) -> list[RunRow]:
    """Return a page of a conversation's turns, in order."""
    return [read_row(values) for values in await reader.rows(_TURNS, [tenant, name, after, limit])]


async def count(reader: Reader, tenant: str, name: str, up_to: int) -> int:
    """Return how many turns a conversation has up to a number."""
    return int((await reader.rows(_COUNT, [tenant, name, up_to]))[0][0])


async def annotate(reader: Reader, tenant: str, name: str, metadata: bytes) -> None:
    """Keep what a caller says of a conversation."""
    await reader.rows(_ANNOTATE, [tenant, name, metadata, crc32(metadata)])


async def astray(reader: Reader) -> list[str]:
    """Return what is wrong with conversations: an active run that is no open turn, a turn that none will call."""
    astray, forgotten = await reader.rows(_ASTRAY), await reader.rows(_FORGOTTEN)
    found = [f"conversation {name!r} has an active run that is no open turn of it" for (name,) in astray]
    return found + [f"conversation {name!r} has forgotten a turn that waits" for (name,) in forgotten]
