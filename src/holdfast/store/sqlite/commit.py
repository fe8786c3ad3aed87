"""One commit: the check and the write in one statement, and whatever becomes true with it."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from holdfast.core.errors import Damaged
from holdfast.store.bell import Bells, Word
from holdfast.store.page import ending
from holdfast.store.rows import Seal
from holdfast.store.sqlite.beside import add_blobs, add_post, drop_chunks, move_budget
from holdfast.store.sqlite.conversing import AT_ITS_TURN, close_turn, is_at_its_turn
from holdfast.store.sqlite.creating import create
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.limiting import free
from holdfast.store.start import keyless
from holdfast.store.value import Commit, Committed, HeadMoved, InboxMoved, KeyTaken, Lease, LeaseLost, Outcome

# The check and the write are one statement: a worker that lost its lease matches no row.
_ADVANCE: Final = """
    UPDATE hf_runs SET last_seq = ?1, head = ?2, updated_at = ?3, stalls = ?4, guard = ?5
     WHERE number = ?6 AND owner = ?7 AND fence = ?8 AND last_seq = ?9
"""
_MATCHED: Final = " AND control_seq = coalesce(?10, control_seq) AND inbox_seq = coalesce(?11, inbox_seq)"
_ADVANCE_MATCHED: Final = _ADVANCE + _MATCHED
_CHANGE: Final = f"""
    UPDATE hf_runs SET last_seq = ?1, head = ?2, updated_at = ?3, stalls = ?4, guard = ?5, status = ?12, reason = ?13,
           due_at = ?14, refused = ?15, seen_seq = min(inbox_seq, coalesce(?16, inbox_seq)),
           inbox_sum = inbox_sum + min(inbox_seq, coalesce(?16, inbox_seq)) - seen_seq, owner = NULL
     WHERE number = ?6 AND owner = ?7 AND fence = ?8 AND last_seq = ?9 {_MATCHED}
"""
_PLAIN: Final = {9: _ADVANCE, 11: _ADVANCE_MATCHED, 16: _CHANGE}
_OF_TURN: Final = {values: statement + AT_ITS_TURN for values, statement in _PLAIN.items()}
"""By how many values they have."""
_CONSUME: Final = """
    UPDATE hf_posts SET consumed = ?1, guard = guard + ((?1 - coalesce(consumed, 0)) << 32) WHERE run = ?2 AND seq = ?3
"""


class CommitOp:
    """One commit with its statements' values made ready, so that the writer only executes."""

    __slots__ = ("_change", "_entries", "_lease", "_values", "_words", "quiet", "run")

    def __init__(self, lease: Lease, change: Commit, owner: int | None, sealed: Seal) -> None:
        self._lease, self._change = lease, change
        self._words: Sequence[Word] = ()
        self.run = lease.row.run
        self.quiet = change.change is None and not (change.posts or change.children or change.freed)
        number = lease.row.number
        entries = change.entries
        if entries:
            self._entries = [(number, *entry) for entry in entries]
            seq, _, _, at, _, _, head = entries[-1]
        else:
            self._entries, seq, at, head = [], change.after, lease.row.updated_at, change.previous
        if change.progress:
            sealed.stalls = 0
        stalls = sealed.stalls
        row = change.change
        crc = sealed.after(at, seq, head, stalls, row)
        if row is None:
            values: tuple[Any, ...] = (seq, head, at, stalls, crc, number, owner, lease.fence, change.after)
            free = change.control is None and change.inbox is None
            self._values = values if free else (*values, change.control, change.inbox)
        else:
            self._values = (
                seq, head, at, stalls, crc, number, owner, lease.fence, change.after, change.control, change.inbox,
                str(row.status), row.reason, row.due_at, row.refused, row.seen_seq,
            )  # fmt: skip

    def apply(self, db: Db) -> Outcome:
        """Write it, or say why not."""
        change = self._change
        values = self._values
        if values[6] is None:
            # The worker was registered through another opening of the store, or never.
            owner = db.worker_number(self._lease.worker)
            if owner is None:
                return LeaseLost()
            values = self._values = (*values[:6], owner, *values[7:])
        of_turn = self._lease.row.conversation is not None
        db.cursor.execute((_OF_TURN if of_turn else _PLAIN)[len(values)], values)
        if db.connection.changes() != 1:
            return self._refusal(db)
        db.entries += self._entries
        # These are rare; the empty checks are all that an ordinary step pays.
        if change.drop:
            drop_chunks(db, self._lease.row.number, change.drop)
        if change.blobs:
            add_blobs(db, self._lease.row, change.entries, change.blobs)
        if change.posts or change.consumed or change.children or change.budget or change.cursor or change.freed:
            self._apply_rest(db)
        if of_turn and change.change is not None:
            close_turn(db, self._lease.row, change.change.status, values[0])
        return Committed(values[0])

    def _apply_rest(self, db: Db) -> None:
        change, row = self._change, self._lease.row
        at = change.entries[-1].at if change.entries else row.updated_at
        for child in change.children:
            refused = isinstance(create(db, child, None, at), KeyTaken)
            if refused and child.row.conversation is not None:
                # What was said is not lost with the key.
                create(db, keyless(child), None, at)
        for post in change.posts:
            # A post to a run that is damaged is lost with it; the sender's commit is not.
            with contextlib.suppress(Damaged):
                add_post(db, post, at)
        for seq in change.consumed:
            taken = change.entries[-1].seq if change.entries else change.after
            db.rows(_CONSUME, (taken, row.number, seq))
        if change.budget:
            move_budget(db, row.number, change.budget)
        if change.cursor is not None and row.conversation is not None:
            db.rows(
                "INSERT INTO hf_conversations (tenant, conversation, last_turn, harness, cursor) "
                "VALUES (?, ?, 0, ?, ?) ON CONFLICT (tenant, conversation) "
                "DO UPDATE SET harness = excluded.harness, cursor = excluded.cursor "
                # It is bound to its first harness, whatever another one's commit says.
                "WHERE harness IS NULL OR harness = excluded.harness",
                (row.tenant, row.conversation, *change.cursor),
            )
        if change.freed:
            # By the clock of this moment: when the entry was made, others had not started yet.
            self._words = free(db, row.number, self._lease.fence, change.freed, db.now())

    def _refusal(self, db: Db) -> Outcome:
        lease, change = self._lease, self._change
        found = db.rows(
            "SELECT owner, fence, last_seq, inbox_seq, control_seq FROM hf_runs WHERE number = ?", (lease.row.number,)
        )
        if not found or found[0][:2] != (self._values[6], lease.fence):
            return LeaseLost()
        if lease.row.conversation is not None and not is_at_its_turn(db, lease.row.number):
            return LeaseLost()
        _, _, last_seq, inbox_seq, control_seq = found[0]
        if last_seq != change.after:
            return HeadMoved(last_seq)
        return InboxMoved(inbox_seq, control_seq)

    def settled(self, db: Db) -> Outcome | None:
        """Say, under the write lock, whether a COMMIT of unknown outcome took: the head's checksum tells."""
        found = db.rows("SELECT head, last_seq FROM hf_runs WHERE number = ?", (self._lease.row.number,))
        if found and self._change.entries and found[0] == (self._change.head, self._values[0]):
            return Committed(self._values[0])
        return None

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake the run's readers, and whoever it posted to or made claimable."""
        change = self._change
        if outcome.__class__ is not Committed:
            return
        ended = change.change is not None and change.change.status.terminal
        bells.ring(
            self.run, moved=change.change is not None, ending=partial(ending, self._lease, change) if ended else None
        )
        for post in change.posts:
            bells.ring(post.run)
        for step in change.freed:
            bells.told(self.run, step, self._lease.fence)  # it may ask again, and has no slot then
        for word in self._words:
            bells.tell(word)
        resting = change.change is not None and (not ended or self._lease.row.conversation is not None)
        if change.posts or change.children or resting:
            bells.ring(None)
