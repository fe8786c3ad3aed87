"""Deliberately broken stores, wires and engines: each breaks one promise, and the checks must catch each of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from holdfast.core.ids import RunId, WorkerId
from holdfast.engine.effects import StepCall
from holdfast.engine.step import Step
from holdfast.store.answer import Answer
from holdfast.store.memory import MemoryStore
from holdfast.store.value import Commit, Committed, Lease, NewPost, Outcome, Post, Posted
from tests.simulation.wire import Wire


class _LosesRacedPost(MemoryStore):
    """A park takes as seen what came since its run looked."""

    def _commit(self, lease: Lease, change: Commit) -> Outcome:
        if change.change is not None and not change.change.status.terminal:
            change = replace(change, inbox=None, change=replace(change.change, seen_seq=None))
        return super()._commit(lease, change)


class _NoFence(MemoryStore):
    """A commit is taken from whoever had the run at some time, and put where its end is."""

    def _commit(self, lease: Lease, change: Commit) -> Outcome:
        row = self._rows[lease.row.run]
        lease = replace(lease, worker=row.owner, fence=row.fence)
        return super()._commit(lease, replace(change, after=row.last_seq))


class _NoControl(MemoryStore):
    """An ending does not ask whether the run was cancelled meanwhile."""

    def _commit(self, lease: Lease, change: Commit) -> Outcome:
        return super()._commit(lease, replace(change, control=None))


class _LosesWakeUp(MemoryStore):
    """A post to a run at rest does not wake it."""

    def _post(self, post: NewPost) -> Posted | None:
        posted = super()._post(post)
        row = self._rows[post.run]
        if row.owner is None and not row.status.terminal:
            self._rows[post.run] = replace(row, seen_seq=row.inbox_seq)
        return posted


class _TakesTwice(MemoryStore):
    """What was taken from an inbox is there again."""

    async def inbox(self, run: RunId, *, after: int = 0) -> Sequence[Post]:
        return self._posts.get(run, [])


class _AcceptsLate(MemoryStore):
    """A run that has ended still accepts posts."""

    def _post(self, post: NewPost) -> Posted | None:
        row = self._rows[post.run]
        if not row.status.terminal or any(known.key == post.key for known in self._posts[post.run]):
            return super()._post(post)
        return Posted("accepted", row.inbox_seq + 1)


class _LosesEntry(MemoryStore):
    """The second entry of a commit of two is not kept."""

    def _commit(self, lease: Lease, change: Commit) -> Outcome:
        outcome = super()._commit(lease, change)
        if isinstance(outcome, Committed) and len(change.entries) > 1:
            del self._entries[lease.row.run][-2]
        return outcome


class _KeepsTheDead(MemoryStore):
    """What a dead worker had stays his."""

    async def void(self, worker: WorkerId, *, why: str) -> int:
        self._workers.pop(worker, None)
        return 0


class _Hasty(Wire):
    """A commit is acknowledged before it is made; a death then takes it back."""

    def commit(self, lease: Lease, change: Commit) -> Any:
        super().commit(lease, change)
        hasty = Answer(loop=self._loop)
        hasty.set_result(Committed(change.entries[-1].seq if change.entries else change.after))
        return hasty


def _no_intent() -> AbstractContextManager[Any]:
    """A `once` step acts before anything is written."""

    async def intend(self: StepCall, attempt: int) -> int:
        return self.drive.store.now()

    return mock.patch.object(StepCall, "_intend", intend)


def _key_per_attempt() -> AbstractContextManager[Any]:
    """Another attempt sends another idempotency key."""
    make = StepCall.step

    def step(self: StepCall, attempt: int) -> Step[Any]:
        made = make(self, attempt)
        made.idempotency_key += f"-{attempt}"
        return made

    return mock.patch.object(StepCall, "step", step)


@dataclass(frozen=True, slots=True)
class Twin:
    """What is broken, and what the checks must say of it."""

    says: str
    store: type[MemoryStore] = MemoryStore
    wire: type[Wire] = Wire
    engine: Callable[[], AbstractContextManager[Any]] = nullcontext


TWINS: Final[Mapping[str, Twin]] = {
    "a post that races a park is lost": Twin("stuck", _LosesRacedPost),
    "the fence is not checked": Twin("a worker without a lease wrote", _NoFence),
    "a cancel that races an ending is lost": Twin(r"is (completed|failed).*, not cancelled", _NoControl),
    "a wake-up is lost": Twin("stuck", _LosesWakeUp),
    "a post is taken twice": Twin("was taken twice", _TakesTwice),
    "an ended run accepts posts": Twin("a run that had ended accepted", _AcceptsLate),
    "an entry is lost": Twin("stuck: .*damaged|verify found", _LosesEntry),
    "the dead keep their runs": Twin("is still owned by", _KeepsTheDead),
    "an acknowledged commit is lost": Twin("done again after its result was returned|stuck|happened 2", wire=_Hasty),
    "effects come before their intents": Twin(r"happened 2 times", engine=_no_intent),
    "keys change from attempt to attempt": Twin("more than one key", engine=_key_per_attempt),
}
