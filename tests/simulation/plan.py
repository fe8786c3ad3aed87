"""Generated programs as data: what their code does, and what outsiders do to them meanwhile."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

import msgspec
from msgspec import Struct

MOST_VERBS: Final = 20
_DEEPEST: Final = 2

EffectKind = Literal["repeat", "keyed", "once", "verified", "asked"]
"""`once` raises when in doubt, `verified` can be looked up, `asked` waits for a person."""
ChildKind = Literal["run", "spawn", "signal", "cancel", "leave"]


class Step(Struct, frozen=True, tag="step"):
    """A step of an effect; it fails some times before it succeeds, or always."""

    place: str
    effect: EffectKind = "repeat"
    fails: int = 0
    never: bool = False
    pause: float = 0.0
    limited: bool = False


class Sleep(Struct, frozen=True, tag="sleep"):
    """A rest."""

    place: str
    seconds: float


class Receive(Struct, frozen=True, tag="receive"):
    """A wait for a signal, which comes or not, maybe several times; one that may come late is waited for again."""

    place: str
    times: int = 1
    timeout: float | None = None
    comes: bool = True
    again: bool = False


class Ask(Struct, frozen=True, tag="ask"):
    """A question, which expires or not."""

    place: str
    expires: float | None = None


class Child(Struct, frozen=True, tag="child"):
    """Another run: waited for, told something, cancelled, or left to end with its parent."""

    place: str
    plan: "Plan"
    how: ChildKind = "run"


class Map(Struct, frozen=True, tag="map"):
    """The same for several items: steps, or runs of their own."""

    place: str
    items: int
    at_once: int
    runs: bool = False
    limited: bool = False


class Gather(Struct, frozen=True, tag="gather"):
    """Branches beside each other."""

    place: str
    branches: tuple[tuple["Op", ...], ...]


class Take(Struct, frozen=True, tag="take"):
    """A value that must be the same on every replay."""

    place: str
    what: Literal["now", "random", "uuid", "patched"]


class Emit(Struct, frozen=True, tag="emit"):
    """News."""

    place: str


class Continue(Struct, frozen=True, tag="continue"):
    """A new generation."""

    place: str


class Fail(Struct, frozen=True, tag="fail"):
    """An error of the program's own, which ends it."""

    place: str


Op = Step | Sleep | Receive | Ask | Child | Map | Gather | Take | Emit | Continue | Fail


class Visit(Struct, frozen=True):
    """What an outsider does, so long after he saw that he can."""

    what: Literal["signal", "answer", "cancel", "pause"]
    after: float
    place: str = ""
    number: int = 1
    yes: bool = True
    twice: bool = False
    rest: float = 0.0
    """How long after a pause the run is to go on."""


class Plan(Struct, frozen=True):
    """One run's program; its name is its own."""

    name: str
    ops: tuple[Op, ...]
    visits: tuple[Visit, ...] = ()
    cleans: bool = False
    """Whether it takes a last step when its end was asked for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in seconds."""

    blink: float
    """Waited for in the process."""
    rest: float
    """Longer than a process waits: the run is parked."""
    soon: float
    """Within so long outsiders act."""


def ops_of(plan: Plan) -> Iterator[Op]:
    """Yield every operation of one run, branches included, children's not."""
    stack: list[Op] = list(reversed(plan.ops))
    while stack:
        op = stack.pop()
        yield op
        if isinstance(op, Gather):
            stack += [inner for branch in reversed(op.branches) for inner in reversed(branch)]


def plans_of(plan: Plan) -> Iterator[Plan]:
    """Yield a plan and those of its children."""
    yield plan
    for op in ops_of(plan):
        if isinstance(op, Child):
            yield from plans_of(op.plan)


def verbs_of(plan: Plan) -> int:
    """Return how many verbs a program has, children's included."""
    return sum(1 for each in plans_of(plan) for _ in ops_of(each))


def written(plan: Plan) -> str:
    """Return a plan as text, to be read by people and by `parsed`."""
    return msgspec.json.encode(plan).decode()


def parsed(text: str) -> Plan:
    """Return the plan of a text."""
    return msgspec.json.decode(text, type=Plan)


def generate(seed: str, pace: Pace, *, verbs: int = MOST_VERBS, name: str = "p") -> Plan:
    """Return the program that a seed stands for, of at most so many verbs."""
    return _Author(Random(seed), pace, verbs).plan(name, top=True)


class _Author:
    """Draws a program; each verb takes one from what is left."""

    def __init__(self, chance: Random, pace: Pace, verbs: int) -> None:
        self._chance, self._pace = chance, pace
        self._left = chance.randint(max(1, verbs // 4), verbs)

    def plan(self, name: str, *, top: bool, told: bool = False, depth: int = 0) -> Plan:
        chance = self._chance
        most = self._left if top else min(self._left, chance.randint(1, 5))
        visits: list[Visit] = []
        ops: list[Op] = []
        if told:
            self._left -= 1
            ops.append(Receive(f"{name}.told"))
        until = self._left - most
        while self._left > max(0, until):
            ops.append(self._op(f"{name}.{len(ops)}", visits, depth))
        if top and chance.random() < 0.25:
            ops.insert(chance.randrange(len(ops) + 1), Continue(f"{name}.next"))
        if chance.random() < (0.04 if top else 0.1):
            ops.append(Fail(f"{name}.end"))
        if top:
            visits += self._controls()
        return Plan(name, tuple(ops), tuple(visits), cleans=chance.random() < 0.5)

    def _controls(self) -> Iterator[Visit]:
        chance = self._chance
        if chance.random() < 0.2:
            yield Visit("cancel", self._moment(), twice=chance.random() < 0.3)
        if chance.random() < 0.2:
            yield Visit("pause", self._moment(), rest=self._moment())

    def _moment(self) -> float:
        """Return how long an outsider waits: often no time at all."""
        return self._chance.choice(
            (0.0, self._chance.uniform(0, self._pace.blink), self._chance.uniform(0, self._pace.soon))
        )

    def _op(self, place: str, visits: list[Visit], depth: int, *, plain: bool = False) -> Op:
        self._left -= 1
        chance, pace = self._chance, self._pace
        kinds = ["step"] * 7 + ["take", "sleep", "receive", "receive", "ask", "emit", "map"]
        if not plain and self._left >= 2:
            kinds += ["gather", "gather"]
            if depth < _DEEPEST:
                kinds += ["child", "child", "child"]
        match chance.choice(kinds):
            case "step":
                return self._step(place)
            case "take":
                return Take(place, chance.choice(("now", "random", "uuid", "patched")))
            case "sleep":
                return Sleep(place, chance.choice((0.0, pace.blink, pace.blink, pace.rest)))
            case "receive":
                return self._receive(place, visits)
            case "ask":
                return self._ask(place, visits)
            case "emit":
                return Emit(place)
            case "map":
                items = chance.randint(0, 5)
                return Map(
                    place, items, chance.randint(1, 3), runs=chance.random() < 0.3, limited=chance.random() < 0.3
                )
            case "gather":
                return self._gather(place, visits, depth)
            case _:
                how = chance.choice(("run", "run", "spawn", "signal", "cancel", "leave"))
                plan = self.plan(place, top=False, told=how == "signal", depth=depth + 1)
                return Child(place, plan, how)  # type: ignore[arg-type] # one of the words

    def _step(self, place: str) -> Step:
        chance = self._chance
        effect = chance.choice(("repeat", "repeat", "keyed", "once", "verified", "asked"))
        fails = chance.choice((0, 0, 0, 0, 1, 2))
        pause = chance.choice((0.0, self._pace.blink, self._pace.rest)) if fails else 0.0
        never = fails > 0 and chance.random() < 0.3
        return Step(place, effect, fails, never, pause, limited=chance.random() < 0.2)  # type: ignore[arg-type]

    def _receive(self, place: str, visits: list[Visit]) -> Receive:
        chance, pace = self._chance, self._pace
        kind = chance.choice(("comes", "comes", "never", "races"))
        if kind == "never":
            return Receive(place, timeout=chance.choice((0.0, pace.blink, pace.rest)), comes=False)
        times = 1 if kind == "races" else chance.choice((1, 1, 2, 3))
        for number in range(1, times + 1):
            visits.append(Visit("signal", self._moment(), place, number, twice=chance.random() < 0.3))
        if kind == "races":
            return Receive(place, timeout=chance.choice((pace.blink, pace.soon / 2)), again=True)
        return Receive(place, times)

    def _ask(self, place: str, visits: list[Visit]) -> Ask:
        chance, pace = self._chance, self._pace
        kind = chance.choice(("comes", "comes", "never", "races"))
        if kind == "never":
            return Ask(place, expires=chance.choice((pace.blink, pace.rest)))
        expires = chance.choice((pace.blink, pace.soon / 2)) if kind == "races" else None
        after = chance.uniform(0.5, 1.2) * expires if expires is not None else self._moment()
        visits.append(Visit("answer", after, place, yes=chance.random() < 0.5, twice=chance.random() < 0.3))
        return Ask(place, expires)

    def _gather(self, place: str, visits: list[Visit], depth: int) -> Gather:
        branches: list[tuple[Op, ...]] = []
        for branch in range(self._chance.randint(2, 3)):
            ops: list[Op] = []
            for number in range(self._chance.randint(1, 2)):
                if self._left > 0:
                    ops.append(self._op(f"{place}.{branch}.{number}", visits, depth, plain=self._chance.random() < 0.7))
            branches.append(tuple(ops))
        return Gather(place, tuple(branches))
