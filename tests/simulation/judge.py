"""Holds what came of programs against the model: results, endings, effects by policy, journals and posts."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast import events as e
from holdfast.core.entry import Entry
from holdfast.core.errors import Damaged
from holdfast.runtime import Runtime
from tests.simulation.guest import Line
from tests.simulation.model import Expected, Model, Told, effects, fits
from tests.simulation.plan import Child, Emit, Op, Plan, Receive, ops_of, plans_of


class Broken(AssertionError):
    """A promise was broken; each line says which."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One run at its end."""

    run: str
    name: str
    status: str
    reason: str
    result: Any
    entries: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is known when every run has ended: the runs by their plan's name, and the ledger outside."""

    runs: Mapping[str, Sequence[Ended]]
    ledger: Sequence[Line]
    deaths: bool
    broken: Sequence[str] = ()

    @classmethod
    async def of(
        cls, runtime: Runtime, ledger: Sequence[Line], *, deaths: bool, broken: Sequence[str] = ()
    ) -> "Observed":
        """Read every run of a store."""
        found = [
            f"verify found {finding.run} {finding.seq}: {finding.what}" async for finding in runtime.client.verify()
        ]
        runs: dict[str, list[Ended]] = defaultdict(list)
        before: str | None = None
        while page := await runtime.runs(before=before, limit=100):
            for summary in page:
                run = await runtime.get(summary.id)
                info = await run.info()
                try:
                    entries = [event async for event in run.events(follow=False) if isinstance(event, Entry)]
                except Damaged as damaged:
                    raise Broken("\n".join([*broken, *found, str(damaged)])) from damaged
                name = info.input["plan"]["name"] if info.name == "act" else info.input["place"]
                runs[name].append(Ended(run.id, info.name, str(info.status), info.reason, info.result, entries))
            before = page[-1].id
        return cls(runs, ledger, deaths, [*broken, *found])


def judge(plans: Sequence[Plan], observed: Observed) -> None:
    """Do nothing if everything is as it must be.

    Raises:
        Broken: something is not.
    """
    broken = [*observed.broken, *(fault for plan in plans for fault in faults(plan, observed))]
    if broken:
        raise Broken("\n".join(broken[:20]))


def faults(plan: Plan, observed: Observed) -> Iterator[str]:
    """Say what is wrong with one program and its children."""
    verdict = _Verdict(observed, _told(observed.ledger, plan))
    yield from verdict.of_run(plan, verdict.model.expect(plan), needed=True)


def _told(ledger: Sequence[Line], plan: Plan) -> Told:
    names = {each.name for each in plans_of(plan)}
    told = [line for line in ledger if line["what"] == "told" and line["of"] in names]
    return Told(
        cancelled={line["of"]: True for line in told if line["verb"] == "cancel" and line["answer"]},
        answered={line["place"]: True for line in told if line["verb"] == "answer" and line["answer"]},
    )


class _Verdict:
    """One program's."""

    def __init__(self, observed: Observed, told: Told) -> None:
        self._observed = observed
        self.model = Model(told, deaths=observed.deaths)
        self._lines: dict[str, list[Line]] = defaultdict(list)
        for line in observed.ledger:
            if "place" in line:
                self._lines[line["place"]].append(line)

    def of_run(self, plan: Plan, expected: Expected, *, needed: bool) -> Iterator[str]:
        """Say what is wrong with a run, which must be there if it is needed, and with its children."""
        runs = self._observed.runs.get(plan.name, ())
        if len(runs) != 1:
            if runs or needed:
                yield f"{plan.name} has {len(runs)} runs"
            return
        (run,) = runs
        if run.status not in expected.statuses:
            yield f"{plan.name} is {run.status} ({run.reason}), not {' or '.join(expected.statuses)}"
        values = run.result if run.status == "completed" else None
        if values is not None:
            yield from (f"{plan.name}: {fault}" for fault in _difference(expected.values, values))
        yield from (f"{plan.name}: {fault}" for fault in self._of_journal(plan, run, values))
        yield from self._of_effects(plan, values)
        for op in ops_of(plan):
            yield from self._of_child(op, values)

    def _of_child(self, op: Op, values: Mapping[str, Any] | None) -> Iterator[str]:
        if isinstance(op, Child):
            own = self.model.expect_child(op)
            if values is None:
                own = Expected((*own.statuses, "cancelled"), own.values)
            yield from self.of_run(op.plan, own, needed=values is not None)

    def _of_journal(self, plan: Plan, run: Ended, values: Any) -> Iterator[str]:
        """One history, one ending, news once, and no signal more often than it was sent."""
        if [entry.seq for entry in run.entries] != list(range(1, len(run.entries) + 1)):
            yield f"its entries are numbered {[entry.seq for entry in run.entries]}"
        ends = [entry for entry in run.entries if isinstance(entry, e.RunFinished)]
        if len(ends) != 1 or run.entries[-1] is not ends[0]:
            yield f"it has {len(ends)} endings, and its last entry is {run.entries[-1].type}"
        news = [entry.value["place"] for entry in run.entries if isinstance(entry, e.Emitted)]
        asked = [op.place for op in ops_of(plan) if isinstance(op, Emit)]
        if len(set(news)) != len(news) or (values is not None and sorted(news) != sorted(asked)):
            yield f"its news are {news}"
        signals = [entry.name for entry in run.entries if isinstance(entry, e.SignalReceived)]
        wanted = [op.place for op in ops_of(plan) if isinstance(op, Receive) and op.comes for _ in range(op.times)]
        if Counter(signals) - Counter(wanted) or (values is not None and sorted(signals) != sorted(wanted)):
            yield f"it received {signals}"

    def _of_effects(self, plan: Plan, values: Mapping[str, Any] | None) -> Iterator[str]:
        for place, bounds in effects(plan, values, deaths=self._observed.deaths):
            lines = [line for line in self._lines[place] if line["what"] in ("did", "tried")]
            times = sum(line["what"] == "did" for line in lines)
            if times < bounds.least or (bounds.most is not None and times > bounds.most):
                yield f"{place} happened {times} times, not {bounds.least} to {bounds.most}"
            for what in ("key", "saw"):
                if len(seen := {line[what] for line in lines}) > 1:
                    yield f"{place} was given more than one {what}: {sorted(seen)}"
            yield from self._of_repeats(place)

    def _of_repeats(self, place: str) -> Iterator[str]:
        """What was recorded is not done again by whoever may write."""
        acknowledged = False
        for line in self._lines[place]:
            if line["what"] == "did" and acknowledged and line.get("held", True):
                yield f"{place} was done again after its result was returned"
            acknowledged = acknowledged or line["what"] == "ack"


def _difference(expected: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    for place in [*expected, *(place for place in values if place not in expected)]:
        if place not in values:
            yield f"{place} is missing"
        elif place not in expected:
            yield f"{place} is {values[place]!r}, and should not be there"
        elif not fits(expected[place], values[place]):
            yield f"{place} is {values[place]!r}, not {expected[place]!r}"
