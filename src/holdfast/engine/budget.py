"""What a run under way has left of its budget: taken before it is spent, and raised while it waits."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.core import budget
from holdfast.core import entry as e
from holdfast.core.budget import DEADLINE, STEPS, Account
from holdfast.core.errors import Parked
from holdfast.core.fold import RunState
from holdfast.core.ids import RunId
from holdfast.core.post import RAISE, Raise
from holdfast.core.status import Status
from holdfast.engine.resting import rest
from holdfast.store.value import NewPost, Post

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive

BUDGET: Final = "budget"
"""The kind of a wait for more of it."""
_LOOK_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 0.01
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Purse:
    """The accounts of one run while it is driven; what is held is taken, and its entry not yet written."""

    def __init__(self, state: RunState) -> None:
        self.accounts: Mapping[str, Account] = state.accounts
        self.grants = {step: dict(grant) for step, grant in state.grants.items()}
        self._held = 0
        self._closing: tuple[Sequence[e.Entry], dict[str, Any]] | None = None

    @property
    def deadline(self) -> int | None:
        """Until when the run may go on, in µs."""
        account = self.accounts.get(DEADLINE)
        return account.total if account is not None else None

    @property
    def counts_steps(self) -> bool:
        """True when each step is paid for."""
        return STEPS in self.accounts

    def affords(self, steps: int) -> bool:
        """Say whether so many steps are free."""
        account = self.accounts.get(STEPS)
        return account is None or account.free - self._held >= steps

    async def hold(self, drive: "Drive", step: str, steps: int) -> None:
        """Take so many steps for what is about to begin; the run rests as exhausted while there are not as many.

        Raises:
            Parked: it rests; its code is left here.
            CancelledError: the code was cancelled meanwhile.
        """
        while not self.affords(steps):
            await drive.waits.until(
                BUDGET, step, due_at=None, detail=self._wanting(steps), ready=lambda: self.affords(steps)
            )
        self._held += steps

    def _wanting(self, steps: int) -> str:
        """Return what is missing, for people."""
        account = self.accounts[STEPS]
        given = f", {account.reserved} given to children" if account.reserved else ""
        return f"{steps} wanted, {account.free} left of {account.total}{given}"

    def pay(self, entry: e.Entry) -> Sequence[e.BudgetMove]:
        """Return what an entry moves, to be committed with it; what was held for it is held no more."""
        moves = budget.moves_of(entry, self.grants)
        match entry:
            case e.ChildSpawned(grant=dict() as grant):
                self.grants[entry.step] = grant
            case e.ChildSettled():
                self.grants.pop(entry.step, None)
            case _:
                pass
        return self.move(moves)

    def move(self, moves: Sequence[e.BudgetMove]) -> Sequence[e.BudgetMove]:
        """Make moves that are written, or about to be."""
        self.accounts = budget.after(self.accounts, moves)
        for move in moves:
            # What comes back from a child, or is charged at the end, was never held.
            if move.channel == STEPS and move.reserved >= 0:
                self._held -= move.spent + move.reserved
        return moves

    def spent(self) -> dict[str, int] | None:
        """Return what a run that ends has spent, for its parent."""
        return {STEPS: self.accounts[STEPS].spent} if self.counts_steps else None

    def close(self) -> tuple[Sequence[e.Entry], dict[str, Any]]:
        """Return the entry that charges what children were given and have not settled, if any, and what it moves.

        Once, however often the ending that it is written with is refused for a post.
        """
        if self._closing is None:
            moves = budget.closing(self.accounts)
            if moves:
                entry = e.BudgetChanged(moves=moves, why="ended")
                self._closing = [entry], {"budget": self.pay(entry)}
        return self._closing or ((), {})

    # Raising

    def raised(self, asked: Raise) -> list[e.BudgetMove]:
        """Return the moves that a raise comes to here; one of what is not limited comes to nothing."""
        moves = []
        if asked.steps and self.counts_steps:
            moves.append(e.BudgetMove(STEPS, total=asked.steps))
        deadline = self.deadline
        if asked.deadline is not None and deadline is not None and asked.was in (None, deadline):
            later = asked.deadline - deadline
            if later > 0:
                moves.append(e.BudgetMove(DEADLINE, total=later))
        return moves


async def hear_raise(drive: "Drive", post: Post) -> None:
    """Add to the budget what somebody raised it by, and tell the children that have its deadline."""
    asked = msgspec.json.decode(post.body, type=Raise)
    purse = drive.purse
    was = purse.deadline if purse is not None else None
    moves = purse.raised(asked) if purse is not None else []
    if purse is None or not moves:
        await drive.written(drive.outbox.append(consumed=(post.seq,)))
        return
    entry = e.BudgetChanged(moves=moves, why=f"raised: {asked.reason}" if asked.reason else "raised", by=asked.by)
    posts = []
    if any(move.channel == DEADLINE for move in moves):
        told = msgspec.structs.replace(asked, steps=0, was=was)
        posts = [raise_post(child, told, f"{drive.lease.row.run}/{post.seq}") for child in drive.children.values()]
    moves_made = purse.pay(entry)
    await drive.written(drive.outbox.append(entry, consumed=(post.seq,), posts=posts, budget=moves_made))


def raise_post(run: RunId, asked: Raise, key: str) -> NewPost:
    """Return the post that raises a run's budget; the same key raises it once."""
    return NewPost(run=run, kind=RAISE, key=f"{RAISE}/{key}", body=msgspec.json.encode(asked), control=True)


async def hear_raises(drive: "Drive") -> None:
    """Heed what was posted to raise the budget of a run that rests."""
    for post in await drive.answer(drive.store.inbox(drive.lease.row.run)):
        if post.kind == RAISE:
            await hear_raise(drive, post)


def may_go_on(drive: "Drive") -> bool:
    """Say whether a run that was exhausted is so no more; one that ran out of time may need no more steps."""
    enough = drive.purse is None or drive.state.reason != STEPS or drive.purse.affords(1)
    return enough and not is_overdue(drive)


# The deadline


def is_overdue(drive: "Drive") -> bool:
    """Say whether the run's deadline has passed; one whose end was asked for has none any more."""
    deadline = drive.purse.deadline if drive.purse is not None else None
    counts = deadline is not None and not drive.cancel_asked and not drive.rehearsing
    return counts and deadline is not None and drive.store.now() >= deadline


class Alarm:
    """Stops the code of a run whose deadline passes, wherever it is; nothing is recorded of that but the rest."""

    def __init__(self, drive: "Drive") -> None:
        self._drive = drive
        self._timer: asyncio.TimerHandle | None = None
        self.rang = False

    def set(self) -> None:
        """Look when it is time, or sooner: the store's clock is not the event loop's, and a deadline may be raised."""
        purse = self._drive.purse
        if purse is not None and purse.deadline is not None:
            left = (purse.deadline - self._drive.store.now()) / 1e6
            self._timer = self._drive.loop.call_later(min(max(left, _AGAIN_SECONDS), _LOOK_SECONDS), self._look)

    def _look(self) -> None:
        drive = self._drive
        if drive.halted is not None or drive.cancel_asked:
            return
        # A rest or an ending that is under way may still be refused for a post.
        if drive.resting or drive.task is None or not is_overdue(drive):
            self.set()
            return
        self.rang = drive.stopping = True
        drive.halt(Parked(DEADLINE))
        drive.task.cancel()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()


async def rest_overdue(drive: "Drive") -> None:
    """Let a run rest whose deadline has passed."""
    assert drive.purse is not None
    at = _EPOCH + timedelta(microseconds=drive.purse.deadline or 0)
    await rest(drive, Status.EXHAUSTED, DEADLINE, detail=f"it was {at.isoformat(timespec='seconds')}")
