"""What a run under way has left of its budget: taken before it is spent, and raised while it waits."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.core import budget
from holdfast.core import entry as e
from holdfast.core.budget import BUDGET, COUNTED, DEADLINE, METERED, STEPS, Account
from holdfast.core.errors import Parked
from holdfast.core.fold import RunState
from holdfast.core.ids import RunId
from holdfast.core.post import RAISE, Raise
from holdfast.core.status import Status
from holdfast.engine.resting import rest
from holdfast.store.value import NewPost, Post

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive

_LOOK_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 0.01
_HELD_BY: Final = {channel: "given to children" if channel == STEPS else "set aside" for channel in COUNTED}
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Purse:
    """The accounts of one run while it is driven; what is held is taken, and its entry not yet written."""

    def __init__(self, state: RunState) -> None:
        self.accounts: Mapping[str, Account] = state.accounts
        self.grants = {step: dict(grant) for step, grant in state.grants.items()}
        self.reservations = {step: dict(held) for step, held in state.reservations.items()}
        self.returned: Mapping[str, Mapping[str, int]] | None = None
        """What settled children of the run that this one tries again gave back, by step; None while that is unread."""
        self._held: dict[str, int] = {}
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

    def counted(self, wants: Mapping[str, int]) -> dict[str, int]:
        """Return what of this is counted here."""
        return {channel: count for channel, count in wants.items() if channel in self.accounts}

    def free(self, channel: str) -> int:
        """Return what can still be taken of a channel that is counted."""
        return self.accounts[channel].free - self._held.get(channel, 0)

    def lacks(self, wants: Mapping[str, int]) -> str | None:
        """Return the first channel of which there is not as much; None when all of it is there."""
        # Of what is overdrawn nothing is there, not even for who wants nothing of it.
        return next((each for each, count in self.counted(wants).items() if self.free(each) < max(0, count)), None)

    async def hold(self, drive: "Drive", step: str, wants: Mapping[str, int]) -> None:
        """Take so much for what is about to begin; the run rests as exhausted while there is not as much.

        Raises:
            Parked: it rests; its code is left here.
            CancelledError: the code was cancelled meanwhile.
        """
        while (channel := self.lacks(wants)) is not None:
            count = wants[channel]
            name = budget.wanting(channel, count) if channel != STEPS else ""
            await drive.waits.until(
                BUDGET, step, due_at=None, name=name, detail=self._wanting(channel, count),
                ready=lambda: self.lacks(wants) is None,
            )  # fmt: skip
        for channel, count in self.counted(wants).items():
            self._held[channel] = self._held.get(channel, 0) + count

    def release(self, held: Mapping[str, int]) -> None:
        """Hold so much no more: its entry is written, or never will be."""
        for channel, count in held.items():
            self._held[channel] = self._held.get(channel, 0) - count

    def _wanting(self, channel: str, count: int) -> str:
        """Return what is missing, for people."""
        account, said = self.accounts[channel], budget.amount
        given = f", {said(channel, account.reserved)} {_HELD_BY[channel]}" if account.reserved else ""
        left = f"{said(channel, self.free(channel))} left of {said(channel, account.total)}"
        return f"{said(channel, count)} wanted, {left}{given}"

    def pay(self, entry: e.Entry) -> Sequence[e.BudgetMove]:
        """Return what an entry moves, to be committed with it; what was held for it is held no more."""
        moves = budget.moves_of(entry, self)
        match entry:
            case e.ChildSpawned(grant=dict() as grant):
                self.grants[entry.step] = grant
                self.release(grant)
            case e.ChildSettled():
                self.grants.pop(entry.step, None)
            case e.StepStarted(reserved=dict() as reserved):
                self.reservations[entry.step] = reserved
                self.release(reserved)
            case (
            e.StepStarted() | e.StepCompleted() | e.StepFailed() | e.MessageAdded() | e.HistoryCompacted()
            | e.StepResolved()
        ):  # fmt: skip
                self.reservations.pop(entry.step or "", None)
            case _:
                pass
        self._release_steps(entry)
        self.accounts = budget.after(self.accounts, moves)
        return moves

    def take_back(self, entry: e.StepStarted, moves: Sequence[e.BudgetMove]) -> None:
        """Undo what was paid with an intent that was refused, and will not be written.

        What an earlier attempt had set aside, and was charged for with it, is set aside again.
        """
        lost = {move.channel: -move.reserved for move in moves if move.reserved < 0}
        self.reservations.pop(entry.step, None)
        if lost:
            self.reservations[entry.step] = lost
        back = [e.BudgetMove(move.channel, reserved=-move.reserved, spent=-move.spent) for move in moves]
        self.accounts = budget.after(self.accounts, back)

    def paid(self, moves: Sequence[e.BudgetMove]) -> None:
        """Follow what a step's own transaction spent."""
        self.accounts = budget.after(self.accounts, moves)
        self.release({move.channel: move.spent for move in moves})

    def _release_steps(self, entry: e.Entry) -> None:
        usage = getattr(entry, "usage", None)
        if usage and usage.get(STEPS) and self.counts_steps:
            self.release({STEPS: usage[STEPS]})

    def spent(self) -> dict[str, int] | None:
        """Return what a run that ends has spent, for its parent."""
        return {channel: self.accounts[channel].spent for channel in COUNTED if channel in self.accounts} or None

    def over(self) -> dict[str, int]:
        """Return what it has overdrawn."""
        return {
            channel: -account.free
            for channel, account in self.accounts.items()
            if channel in METERED and account.free < 0
        }

    def unknown(self) -> list[str]:
        """Return the channels of which something was spent that nobody counted."""
        return [channel for channel, account in self.accounts.items() if account.unknown]

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
        given = {channel: getattr(asked, channel) for channel in COUNTED}
        moves = [e.BudgetMove(channel, total=more) for channel, more in self.counted(given).items() if more]
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
        told = Raise(deadline=asked.deadline, was=was, by=asked.by, reason=asked.reason)
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
    """Say whether a run that was exhausted is so no more; one that ran out of time may need no more of the rest."""
    purse, wants = drive.purse, drive.state.wants
    out = purse is not None and drive.state.reason != DEADLINE
    enough = not out or any(purse is None or purse.lacks({each: count}) is None for each, count in wants.items())
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
