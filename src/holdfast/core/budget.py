"""A run's budget: what it may spend on each channel, and the sums that always add up."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.retry import checked_seconds

STEPS: Final = "steps"
DEADLINE: Final = "deadline"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Account(Struct, frozen=True):
    """One channel of a run's budget: `total` = free + reserved + spent, always.

    A deadline is a channel too, of which nothing is spent: its total is the time, in µs.
    """

    total: int = 0
    reserved: int = 0
    """Given to children that have not settled."""
    spent: int = 0
    unknown: bool = False
    """Something was spent that nobody counted."""

    @property
    def free(self) -> int:
        """What can still be spent or given away."""
        return self.total - self.reserved - self.spent

    @property
    def sound(self) -> bool:
        """True when nothing of it is below nothing."""
        return min(self.total, self.reserved, self.spent, self.free) >= 0

    def after(self, move: e.BudgetMove) -> "Account":
        """Return the account once something was moved."""
        return Account(
            total=self.total + move.total,
            reserved=self.reserved + move.reserved,
            spent=self.spent + move.spent,
            unknown=self.unknown or move.unknown,
        )


Accounts = Mapping[str, Account]


@dataclass(frozen=True, slots=True)
class Budget:
    """How many steps a run may perform, and until when it may go on.

    `deadline` is a time with its zone, or how long after the run's creation. A run that has used up either rests as
    `exhausted` until it is raised.
    """

    _: KW_ONLY
    steps: int | None = None
    deadline: float | timedelta | datetime | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.deadline is None:
            raise InvalidInput("Budget() limits nothing: give steps=, deadline= or both")
        if self.steps is not None:
            checked_steps("Budget(steps=)", self.steps)
        if self.deadline is not None:
            checked_deadline("Budget(deadline=)", self.deadline, 0)

    def granted(self, now: int) -> dict[str, int]:
        """Return what it comes to for a run that is created now."""
        granted: dict[str, int] = {}
        if self.steps is not None:
            granted[STEPS] = self.steps
        if self.deadline is not None:
            granted[DEADLINE] = checked_deadline("Budget(deadline=)", self.deadline, now)
        return granted


def checked_budget(given: object) -> Budget | None:
    """Return a budget, or none.

    Raises:
        InvalidInput: it is something else.
    """
    if given is not None and not isinstance(given, Budget):
        raise InvalidInput(f"budget= is an hf.Budget, not {given!r}")
    return given


def checked_steps(what: str, steps: object) -> int:
    """Return a number of steps.

    Raises:
        InvalidInput: it is no whole number, or none that a budget can have.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= limits.BUDGET_STEPS:
        raise InvalidInput(f"{what} is a whole number between 1 and {limits.BUDGET_STEPS:,}, not {steps!r}")
    return steps


def checked_deadline(what: str, deadline: float | timedelta | datetime, now: int) -> int:
    """Return a time in µs: the one that is given, or so long after `now`.

    Raises:
        InvalidInput: it is a time without a zone, or neither a time nor a duration.
    """
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise InvalidInput(f"{what} is a time without its zone: {deadline}")
        return (deadline - _EPOCH) // timedelta(microseconds=1)
    return now + int(checked_seconds(what, deadline) * 1e6)


def opened(granted: Mapping[str, int] | None) -> dict[str, Account]:
    """Return the accounts of a run that was given so much."""
    return {channel: Account(total=total) for channel, total in (granted or {}).items()}


def remaining(accounts: Accounts) -> dict[str, int]:
    """Return what a fork is given of these accounts: what is free, and the time until which it may go on."""
    return {channel: account.total if channel == DEADLINE else account.free for channel, account in accounts.items()}


def opening(granted: Mapping[str, int] | None) -> list[e.BudgetMove]:
    """Return the moves that open these accounts."""
    return [e.BudgetMove(channel, total=total) for channel, total in (granted or {}).items()]


def after(accounts: Accounts, moves: Sequence[e.BudgetMove]) -> dict[str, Account]:
    """Return the accounts once these moves were made."""
    moved = dict(accounts)
    for move in moves:
        moved[move.channel] = moved.get(move.channel, Account()).after(move)
    return moved


def moves_of(entry: e.Entry, grants: Mapping[str, Mapping[str, int]]) -> Sequence[e.BudgetMove]:
    """Return what an entry moves; `grants` is what open children were given, by the step that spawned them."""
    match entry:
        case e.StepStarted() | e.StepCompleted() | e.StepFailed():
            return spending(entry.usage)
        case e.ChildSpawned():
            return [e.BudgetMove(channel, reserved=given) for channel, given in (entry.grant or {}).items()]
        case e.ChildSettled():
            return settling(grants.get(entry.step, {}), entry.spent or {})
        case e.BudgetChanged():
            return entry.moves
        case _:
            return ()


def spending(usage: Mapping[str, int | None] | None) -> Sequence[e.BudgetMove]:
    """Return the moves of something spent."""
    return [e.BudgetMove(channel, spent=spent) for channel, spent in usage.items() if spent] if usage else ()


def settling(grant: Mapping[str, int], spent: Mapping[str, int | None]) -> list[e.BudgetMove]:
    """Return the moves of a child that ended: what nobody knows to be left is spent; it never costs more than given."""
    moves = []
    for channel, given in grant.items():
        used = spent.get(channel)
        moves.append(e.BudgetMove(channel, reserved=-given, spent=given if used is None else min(used, given)))
    return moves


def closing(accounts: Accounts) -> list[e.BudgetMove]:
    """Return the moves of a run that ends: what it gave to children that have not settled is charged in full."""
    open_ = {channel: account.reserved for channel, account in accounts.items() if account.reserved}
    return [e.BudgetMove(channel, reserved=-reserved, spent=reserved) for channel, reserved in open_.items()]
