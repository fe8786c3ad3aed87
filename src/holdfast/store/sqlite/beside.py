"""What stands beside a run's entries: posts, chunks and blobs."""

from collections.abc import Sequence

from holdfast.core.checksum import StoredEntry
from holdfast.core.errors import NotFound
from holdfast.core.ids import RunId, id_bytes
from holdfast.core.status import Status
from holdfast.store.protocol import (
    Lease,
    NewBlob,
    NewChunk,
    NewPost,
    Posted,
    RunRow,
)
from holdfast.store.sqlite.database import Db


def add_post(db: Db, post: NewPost, at: int) -> Posted | None:
    """Put a post into an inbox; None when there is no such run."""
    rows = db.rows("SELECT number, status, inbox_seq FROM hf_runs WHERE run = ?", (id_bytes(post.run),))
    if not rows:
        return None
    number, status, inbox_seq = rows[0]
    known = db.rows("SELECT seq FROM hf_posts WHERE run = ? AND key = ?", (number, post.key))
    if known:
        return Posted("duplicate", known[0][0])
    if Status(status).terminal:
        return Posted("finished")
    seq = inbox_seq + 1
    db.rows(
        "UPDATE hf_runs SET inbox_seq = ?, control_seq = CASE WHEN ? THEN ? ELSE control_seq END WHERE number = ?",
        (seq, int(post.control), seq, number),
    )
    db.rows(
        "INSERT INTO hf_posts (run, seq, kind, key, control, at, enc, body) VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
        (number, seq, post.kind, post.key, int(post.control), at, post.body),
    )
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
    at, seq = entries[-1].at, entries[-1].seq
    for blob in blobs:
        key = (row.tenant, bytes.fromhex(blob.digest))
        db.rows(
            "INSERT INTO hf_blobs (tenant, digest, enc, touched_at, body) VALUES (?, ?, 0, ?, ?) "
            "ON CONFLICT (tenant, digest) DO UPDATE SET touched_at = excluded.touched_at",
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
