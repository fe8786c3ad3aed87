"""A user's function and the commit that it leads to, in one transaction of the writer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.store.bell import Bells
from holdfast.store.protocol import Transaction
from holdfast.store.rows import Seal
from holdfast.store.sqlite.commit import CommitOp
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.transaction import call_guarded
from holdfast.store.sqlite.writer import Do, Writer
from holdfast.store.value import Commit, Committed, Lease, LeaseLost, Outcome


class _Refused(Exception):
    """Carries a refusal out of a transaction, so that what the user's function wrote is rolled back."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def transact(
    writer: Writer, lease: Lease, sealed: Seal, work: Callable[[Transaction], Commit], *, deadline_seconds: float
) -> Awaitable[Outcome]:
    """Queue the transaction at once, by itself, and return its outcome to be."""
    tried: list[CommitOp] = []

    def run(db: Db) -> Outcome:
        owner = db.worker_number(lease.worker)
        if owner is None:
            return LeaseLost()
        commit = call_guarded(db.connection, work, deadline_seconds=deadline_seconds)
        tried.append(CommitOp(lease, commit, owner, sealed))
        outcome = tried[-1].apply(db)
        if not isinstance(outcome, Committed):
            raise _Refused(outcome)
        return outcome

    def settled(db: Db) -> Outcome | None:
        return tried[-1].settled(db)

    return _outcome(writer.submit(_Transacted(run, tried, settled=settled, alone=True)))


class _Transacted(Do):
    """Wakes whoever the commit in it wakes."""

    __slots__ = ("_tried",)

    def __init__(self, work: Callable[[Db], Outcome], tried: Sequence[CommitOp], **rest: Any) -> None:
        super().__init__(work, **rest)
        self._tried = tried

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake them."""
        if self._tried:
            self._tried[-1].ring(bells, outcome)


async def _outcome(future: Awaitable[Outcome]) -> Outcome:
    try:
        return await future
    except _Refused as refused:
        return refused.outcome
