"""What a plan must come to, worked out from the plan alone, whatever dies meanwhile and whoever comes first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.plan import (
    Ask,
    Child,
    Continue,
    Emit,
    Fail,
    Gather,
    Map,
    Op,
    Plan,
    Receive,
    Sleep,
    Step,
    Take,
    Visit,
    ops_of,
)


class AnyText:
    """Some text that only the run knows."""

    def __repr__(self) -> str:
        return "<some text>"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any of these, and nothing else."""

    values: tuple[Any, ...]


ANY_TEXT: Final = AnyText()


def fits(expected: Any, value: Any) -> bool:
    """Say whether a value is what was expected."""
    match expected:
        case OneOf(values=values):
            return any(fits(each, value) for each in values)
        case AnyText():
            return isinstance(value, str)
        case dict():
            return isinstance(value, dict) and value.keys() == expected.keys() and all(
                fits(each, value[key]) for key, each in expected.items()
            )  # fmt: skip
        case _:
            return type(value) is type(expected) and bool(value == expected)


@dataclass(slots=True)
class Told:
    """What outsiders were told, by plan and place: whether their cancels and answers count."""

    cancelled: Mapping[str, bool] = field(default_factory=dict)
    answered: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """How a run may end, and with which values if it completes."""

    statuses: tuple[str, ...]
    values: Mapping[str, Any]


class Model:
    """Interprets plans as an unbroken run would, but for what chance may decide."""

    def __init__(self, told: Told, *, deaths: bool) -> None:
        self._told, self._deaths = told, deaths

    def expect(self, plan: Plan) -> Expected:
        """Return what a run that nobody above it ends must come to."""
        values: dict[str, Any] = {}
        status = "completed"
        for op in plan.ops:
            if isinstance(op, Fail):
                status = "failed"
                break
            values |= self._values(op, plan)
        if self._told.cancelled.get(plan.name):
            status = "cancelled"
        return Expected((status,), values)

    def _values(self, op: Op, plan: Plan) -> dict[str, Any]:
        if isinstance(op, Gather):
            values: dict[str, Any] = {op.place: len(op.branches)}
            for branch in op.branches:
                for inner in branch:
                    values |= self._values(inner, plan)
            return values
        return {op.place: self._value(op, plan)}

    def _value(self, op: Op, plan: Plan) -> Any:
        match op:
            case Step():
                ended = f"failed {op.place}" if op.never else f"{op.place}!"
                return OneOf((ended, "in doubt")) if op.effect == "once" and self._deaths else ended
            case Sleep():
                return True
            case Receive():
                return [str(number + 1) for number in range(op.times)] if op.comes else None
            case Ask():
                return self._decision(op, plan)
            case Child():
                return self._child(op)
            case Map():
                return [f"{op.place}.{number}!" for number in range(op.items)]
            case Take():
                return ANY_TEXT
            case Emit():
                return None
            case Continue():
                return "went on"
            case _:
                raise AssertionError(op)

    def _decision(self, op: Ask, plan: Plan) -> Any:
        """An answer counts exactly if whoever gave it was told so."""
        visit = _visit(plan, "answer", op.place)
        if visit is None:
            return "expired"
        yes = [visit.yes, "guest", {"n": 2}]
        if op.expires is None:
            return yes
        return yes if self._told.answered.get(op.place) else "expired"

    def _child(self, op: Child) -> Any:
        if op.how == "leave":
            return "left"
        expected = self.expect(op.plan)
        (status,) = expected.statuses
        own = expected.values if status == "completed" else status
        return OneOf((own, "cancelled")) if op.how == "cancel" else own

    def expect_child(self, op: Child) -> Expected:
        """Return what a child's run must come to if its parent has completed."""
        own = self.expect(op.plan)
        ended = op.how in ("cancel", "leave")
        return Expected((*own.statuses, "cancelled"), own.values) if ended else own


def _visit(plan: Plan, what: str, place: str) -> Visit | None:
    return next((visit for visit in plan.visits if visit.what == what and visit.place == place), None)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How often an effect may have happened."""

    least: int
    most: int | None


def effects(plan: Plan, values: Mapping[str, Any] | None, *, deaths: bool) -> Iterator[tuple[str, Bounds]]:
    """Yield how often each effect of a run happens, given what it came to; None if it did not complete."""
    for op in ops_of(plan):
        if isinstance(op, Step):
            yield op.place, _bounds(op, values, deaths=deaths)
        elif isinstance(op, Map):
            # Values of another program's run than the one that is looked at are looked at there.
            done = values is not None and op.place in values
            for number in range(op.items):
                yield f"{op.place}.{number}", Bounds(int(done), 1 if done and not deaths else None)


def _bounds(op: Step, values: Mapping[str, Any] | None, *, deaths: bool) -> Bounds:
    value = values.get(op.place) if values is not None else None
    if op.never:
        return Bounds(0, 0)
    if op.effect in ("once", "verified", "asked"):
        return Bounds(int(value == f"{op.place}!"), 1)
    return Bounds(int(value is not None), None if deaths else 1)
