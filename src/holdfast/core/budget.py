"""A run's budget: what it may spend on each channel, and the sums that always add up."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final, Protocol

from msgspec import Struct, to_builtins

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.retry import checked_seconds

STEPS: Final = "steps"
CALLS: Final = "calls"
TOKENS: Final = "tokens"
USD: Final = "usd"
DEADLINE: Final = "deadline"
COUNTED: Final = (STEPS, CALLS, TOKENS, USD)
"""The channels that are spent; of the deadline nothing is."""
SHARED: Final = (CALLS, TOKENS, USD)
"""Those of which a child is given some though nobody said how much."""
METERED: Final = (TOKENS, USD)
"""Those of which a provider tells only afterwards what it took: they can be overdrawn by what was underestimated."""
NANO: Final = 1_000_000_000
"""Money is counted in nano-USD, so that a token of any model costs a whole number."""
Money = Decimal | float | int | str
"""An amount in US dollars."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Account(Struct, frozen=True):
    """One channel of a run's budget: `total` = free + reserved + spent, always.

    A deadline is a channel too, of which nothing is spent: its total is the time, in µs.
    """

    total: int = 0
    reserved: int = 0
    """Given to children that have not settled, and set aside for steps under way."""
    spent: int = 0
    unknown: bool = False
    """Something was spent that nobody counted: it is charged as it was reserved."""

    @property
    def free(self) -> int:
        """What can still be spent or given away."""
        return self.total - self.reserved - self.spent

    def is_sound(self, channel: str) -> bool:
        """Say whether nothing of it is below nothing; what is metered may be overdrawn."""
        return min(self.total, self.reserved, self.spent, 0 if channel in METERED else self.free) >= 0

    def after(self, move: e.BudgetMove) -> "Account":
        """Return the account once something was moved."""
        return Account(
            total=self.total + move.total,
            reserved=self.reserved + move.reserved,
            spent=self.spent + move.spent,
            unknown=self.unknown or move.unknown,
        )


Accounts = Mapping[str, Account]


class Books(Protocol):
    """A run's accounts, and what is open in them by step: given to children, and set aside for attempts under way."""

    @property
    def accounts(self) -> Accounts:
        """What is left, by channel; empty for a run without a budget."""

    @property
    def grants(self) -> Mapping[str, Mapping[str, int]]:
        """What children that have not settled were given."""

    @property
    def reservations(self) -> Mapping[str, Mapping[str, int]]:
        """What steps whose attempt has no outcome may take."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend: steps, model calls, tokens, US dollars; and until when it may go on.

    `deadline` is a time with its zone, or how long after the run's creation. A run that has used up any of them rests
    as `exhausted` until it is raised.
    """

    _: KW_ONLY
    steps: int | None = None
    calls: int | None = None
    tokens: int | None = None
    usd: Money | None = None
    deadline: float | timedelta | datetime | None = None

    def __post_init__(self) -> None:
        if not self._amounts() and self.deadline is None:
            raise InvalidInput("Budget() limits nothing: give steps=, calls=, tokens=, usd= or deadline=")
        if self.deadline is not None:
            checked_deadline("Budget(deadline=)", self.deadline, 0)

    def granted(self, now: int) -> dict[str, int]:
        """Return what it comes to for a run that is created now."""
        granted = self._amounts()
        if self.deadline is not None:
            granted[DEADLINE] = checked_deadline("Budget(deadline=)", self.deadline, now)
        return granted

    def _amounts(self) -> dict[str, int]:
        return checked_amounts("Budget({}=)", steps=self.steps, calls=self.calls, tokens=self.tokens, usd=self.usd)


def checked_budget(given: object) -> Budget | None:
    """Return a budget, or none.

    Raises:
        InvalidInput: it is something else.
    """
    if given is not None and not isinstance(given, Budget):
        raise InvalidInput(f"budget= is an hf.Budget, not {given!r}")
    return given


def checked_amounts(
    what: str = "{}=", *, steps: int | None = None, calls: int | None = None, tokens: int | None = None,
    usd: Money | None = None,
) -> dict[str, int]:  # fmt: skip
    """Return the amounts that were given, by channel; money in nano-USD. `what` names one of them in an error.

    Raises:
        InvalidInput: one is nothing that a budget can have.
    """
    counts = {STEPS: (steps, limits.BUDGET_STEPS), CALLS: (calls, limits.BUDGET_STEPS), TOKENS: (tokens, limits.TOKENS)}
    amounts = {
        channel: _checked_count(what.format(channel), given, most)
        for channel, (given, most) in counts.items()
        if given is not None
    }
    if usd is not None:
        amounts[USD] = checked_money(what.format(USD), usd)
    return amounts


def _checked_count(what: str, count: object, most: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
        raise InvalidInput(f"{what} is a whole number between 1 and {most:,}, not {count!r}")
    return count


def checked_money(what: str, amount: object) -> int:
    """Return an amount of US dollars in nano-USD, to the nearest.

    Raises:
        InvalidInput: it is no number, or none that a budget can have.
    """
    nano = None
    if isinstance(amount, Decimal | float | int | str) and not isinstance(amount, bool):
        try:
            # A float is what it prints as: 0.1 is a tenth.
            nano = round(Decimal(str(amount)) * NANO)
        except (InvalidOperation, ValueError, OverflowError):
            nano = None
    if nano is None or not 1 <= nano <= limits.USD * NANO:
        raise InvalidInput(f"{what} is an amount in US dollars up to {limits.USD:,}, not {amount!r}")
    return nano


def dollars(nano: int) -> str:
    """Return an amount of nano-USD for people: in dollars, to the cent or as fine as it is."""
    text = f"{Decimal(nano) / NANO:.9f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"${int(whole):,}.{part:0<2}" if nano >= 0 else f"-{dollars(-nano)}"


def amount(channel: str, count: int) -> str:
    """Return so much of a channel as people write it."""
    return dollars(count) if channel == USD else f"{count:,}"


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
    return {
        channel: account.total if channel == DEADLINE else max(0, account.free) for channel, account in accounts.items()
    }


def opening(granted: Mapping[str, int] | None) -> list[e.BudgetMove]:
    """Return the moves that open these accounts."""
    return [e.BudgetMove(channel, total=total) for channel, total in (granted or {}).items()]


def after(accounts: Accounts, moves: Sequence[e.BudgetMove]) -> dict[str, Account]:
    """Return the accounts once these moves were made."""
    moved = dict(accounts)
    for move in moves:
        moved[move.channel] = moved.get(move.channel, Account()).after(move)
    return moved


def moves_of(entry: e.Entry, books: Books) -> Sequence[e.BudgetMove]:
    """Return what an entry moves of the accounts that there are."""
    match entry:
        case e.StepStarted():
            # An attempt that left no outcome is charged in full once another is made.
            lost = _settled(books, entry.step, None)
            reserved = [e.BudgetMove(channel, reserved=held) for channel, held in (entry.reserved or {}).items()]
            return [*lost, *_spending(books, entry.usage), *reserved]
        case e.StepCompleted() | e.StepFailed() | e.MessageAdded() | e.HistoryCompacted():
            return _settled(books, entry.step, entry.usage or {}) or _spending(books, entry.usage)
        case e.StepResolved():
            return _settled(books, entry.step, NOTHING if entry.outcome == "not_done" else None)
        case e.ChildSpawned():
            return [e.BudgetMove(channel, reserved=given) for channel, given in (entry.grant or {}).items()]
        case e.ChildSettled():
            return settling(books.grants.get(entry.step, {}), entry.spent or {}, entry.unknown)
        case e.BudgetChanged():
            return entry.moves
        case _:
            return ()


NOTHING: Final[Mapping[str, int | None]] = {CALLS: 0, TOKENS: 0, USD: 0}
"""The usage of an attempt that is known not to have been performed."""


def spends(usage: Mapping[str, int | None] | None) -> dict[str, int | None]:
    """Return what a usage comes to by channel; None is unknown. A generation's has `input`, `output` and `cost`."""
    if not usage:
        return {}
    spent = {channel: usage[channel] for channel in COUNTED if channel in usage}
    if "input" in usage or "output" in usage:
        parts = usage.get("input"), usage.get("output")
        spent[TOKENS] = None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    if "cost" in usage:
        spent[USD] = usage["cost"]
    return spent


def usage_of(error: BaseException) -> Mapping[str, int | None] | None:
    """Return what a failed attempt says that it took, in its `usage`; None where it does not know."""
    usage = getattr(error, "usage", None)
    if isinstance(usage, Struct):
        usage = to_builtins(usage)
    return usage if isinstance(usage, Mapping) else None


def _settled(books: Books, step: str | None, usage: Mapping[str, int | None] | None) -> Sequence[e.BudgetMove]:
    """Return the moves of an attempt that ended: what it took is spent, and what nobody counted as it was reserved."""
    reservation = books.reservations.get(step) if step is not None else None
    if not reservation:
        return ()
    spent, moves = spends(usage), []
    for channel, held in reservation.items():
        # A call that ended and is not counted otherwise was one.
        took = spent.pop(channel, held if channel == CALLS and usage is not None else None)
        unknown = took is None
        moves.append(e.BudgetMove(channel, reserved=-held, spent=held if took is None else took, unknown=unknown))
    return [*moves, *_spending(books, spent)]


def _spending(books: Books, usage: Mapping[str, int | None] | None) -> Sequence[e.BudgetMove]:
    """Return the moves of something spent for which nothing was set aside."""
    if not usage:
        return ()
    return [
        e.BudgetMove(channel, spent=spent or 0, unknown=spent is None)
        for channel, spent in spends(usage).items()
        if channel in books.accounts and spent != 0
    ]


def paying(usage: Mapping[str, int | None] | None) -> Sequence[e.BudgetMove]:
    """Return the moves of a step that is paid in its own transaction."""
    return [e.BudgetMove(channel, spent=spent) for channel, spent in (usage or {}).items() if spent]


def settling(
    grant: Mapping[str, int], spent: Mapping[str, int | None], unknown: Sequence[str] = ()
) -> list[e.BudgetMove]:
    """Return the moves of a child that ended: what nobody knows to be left is spent."""
    moves = []
    for channel, given in grant.items():
        used = spent.get(channel)
        if used is None:
            used = given
        elif channel not in METERED:
            used = min(used, given)
        moves.append(e.BudgetMove(channel, reserved=-given, spent=used, unknown=channel in unknown))
    return moves


def settlement(grant: Mapping[str, int], spent: Mapping[str, int], over: Mapping[str, int]) -> dict[str, int | None]:
    """Return what a parent is charged for a child: never more than it gave, but for what the child has overdrawn."""
    return {
        channel: min(used, grant[channel]) + over.get(channel, 0) if channel in METERED else used
        for channel, used in spent.items()
        if channel in grant
    }


def closing(accounts: Accounts) -> list[e.BudgetMove]:
    """Return the moves of a run that ends: what children and lost attempts hold is charged in full."""
    open_ = {channel: account.reserved for channel, account in accounts.items() if account.reserved}
    return [e.BudgetMove(channel, reserved=-reserved, spent=reserved) for channel, reserved in open_.items()]


# Waiting for more

BUDGET: Final = "budget"
"""The kind of a wait for more of it."""


def wanting(channel: str, count: int) -> str:
    """Return the name of a wait for so much of a channel."""
    return f"{channel} {count}"


def wanted(waits: Sequence[e.Wait]) -> dict[str, int]:
    """Return the least that these waits want of each channel."""
    wants: dict[str, int] = {}
    for wait in waits:
        if wait.kind == BUDGET:
            channel, _, count = (wait.name or wanting(STEPS, 1)).partition(" ")
            wants[channel] = min(int(count), wants.get(channel, int(count)))
    return wants
