"""What stands beside a run's entries: posts, chunks, blobs and its budget."""

from collections.abc import Sequence
from typing import Final

from holdfast.core.checksum import StoredEntry
from holdfast.core.entry import BudgetMove
from holdfast.core.errors import Damaged, NotFound
from holdfast.core.ids import RunId, id_bytes
from holdfast.store.rows import CONTROL_FACTOR, INBOX_FACTOR, POSTS, post_guard, read_post
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.lookup import find_run
from holdfast.store.value import Lease, NewBlob, NewChunk, NewPost, Posted, RunRow

_COUNT_POST: Final = f"""
    UPDATE hf_runs SET inbox_seq = ?1, control_seq = ?2,
           inbox_sum = inbox_sum + (?1 - inbox_seq) * {INBOX_FACTOR} + (?2 - control_seq) * {CONTROL_FACTOR}
     WHERE number = ?3
"""
_MOVE: Final = """
    INSERT INTO hf_budgets (run, channel, total, reserved, spent, unknown) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (run, channel) DO UPDATE SET total = total + excluded.total, reserved = reserved + excluded.reserved,
       spent = spent + excluded.spent, unknown = max(unknown, excluded.unknown)
"""
BUDGET: Final = """
    SELECT b.channel, b.total, b.reserved, b.spent, b.unknown FROM hf_budgets b JOIN hf_runs r ON r.number = b.run
     WHERE r.run = ?
"""


def add_post(db: Db, post: NewPost, at: int) -> Posted | None:
    """Put a post into an inbox; None when there is no such run.

    Raises:
        Damaged: the run's row or a post of its is.
    """
    run = id_bytes(post.run)
    row = find_run(db.cursor, post.run)
    if row is None:
        return None
    if row.damage:
        raise Damaged(run=post.run, seq=None, what=row.damage)
    known = db.rows(POSTS + "WHERE run = ? AND key = ?", (row.number, post.key))
    if known:
        return Posted("duplicate", read_post(post.run, known[0]).seq)
    if row.status.terminal:
        return Posted("finished")
    seq, control = row.inbox_seq + 1, int(post.control)
    changed = db.changed(
        "INSERT INTO hf_posts (run, seq, kind, key, control, at, enc, guard, body) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?) "
        "ON CONFLICT DO NOTHING",
        (row.number, seq, post.kind, post.key, control, at,
         post_guard(run, seq, post.kind, post.key, control, at, 0, post.body), post.body),
    )  # fmt: skip
    if changed != 1:
        raise Damaged(run=post.run, seq=None, what=f"its inbox holds a post {seq} that its row does not know")
    db.rows(_COUNT_POST, (seq, seq if control else row.control_seq, row.number))
    return Posted("accepted", seq)


def add_chunks(db: Db, lease: Lease, owner: int, chunks: Sequence[NewChunk], at: int) -> bool:
    """Add chunks, stamped with the run's last seq by the fenced insert itself."""
    for chunk in chunks:
        changed = db.changed(
            "INSERT INTO hf_chunks (run, seq, fence, number, step, attempt, offset, at, enc, body) "
            "SELECT number, last_seq, fence, ?, ?, ?, ?, ?, 0, ? FROM hf_runs "
            "WHERE number = ? AND owner = ? AND fence = ?",
            (
                chunk.number,
                chunk.step,
                chunk.attempt,
                chunk.offset,
                at,
                chunk.body,
                lease.row.number,
                owner,
                lease.fence,
            ),
        )
        if changed != 1:
            return False
    return True


def drop_chunks(db: Db, number: int, steps: Sequence[str]) -> None:
    for step in steps:
        if step == "*":
            db.rows("DELETE FROM hf_chunks WHERE run = ?", (number,))
        else:
            db.rows("DELETE FROM hf_chunks WHERE run = ? AND step = ?", (number, step))


def add_blobs(db: Db, row: RunRow, entries: Sequence[StoredEntry], blobs: Sequence[NewBlob]) -> None:
    """Write blobs and their references in the entry's transaction."""
    # Whichever of the entries names them: a fork that has the last of a few must not lose what the first one stored.
    at, seq = entries[-1].at, entries[0].seq
    for blob in blobs:
        key = (row.tenant, bytes.fromhex(blob.digest))
        db.rows(
            "INSERT INTO hf_blobs (tenant, digest, enc, touched_at, body) VALUES (?, ?, 0, ?, ?) "
            # With its body: whoever stores it again must not rely on bytes that damage has changed since.
            "ON CONFLICT (tenant, digest) DO UPDATE SET touched_at = excluded.touched_at, body = excluded.body",
            (*key, at, blob.body),
        )
        db.rows(
            "INSERT OR IGNORE INTO hf_blob_refs (run, seq, blob) "
            "SELECT ?, ?, id FROM hf_blobs WHERE tenant = ? AND digest = ?",
            (row.number, seq, *key),
        )


def require_posted(posted: Posted | None, run: RunId) -> Posted:
    """Return what became of a post, or raise NotFound."""
    if posted is None:
        raise NotFound(f"run {run}")
    return posted


def move_budget(db: Db, number: int, moves: Sequence[BudgetMove]) -> None:
    """Move a run's accounts, which are opened by their first move."""
    for move in moves:
        db.rows(_MOVE, (number, move.channel, move.total, move.reserved, move.spent, int(move.unknown)))
