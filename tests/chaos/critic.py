"""What every act must have come to after any deaths: what an unbroken life told, by the book and by the ledger."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast import events as e
from holdfast.core.derive import derived_random, derived_uuid, idempotency_key
from holdfast.core.status import Effect
from tests.chaos import judge
from tests.chaos.acts import GENERATIONS
from tests.chaos.judge import Broken
from tests.chaos.playing import Played
from tests.chaos.program import Report, Story
from tests.chaos.world import Line

_DUE: Final = ("due_at", "expires_at")
Facts = Mapping[str, Sequence[str]]
"""What a run recorded in each of its branches, in order."""
Book = Mapping[str, Facts]
"""The facts of every run of an act that nobody killed, by its place in the family; `@` stands for the act's name."""


def book_of(played: Played) -> Book:
    """Return what an unbroken life told of one act of each kind."""
    return {_general(story): _facts(story, played.stories) for story in played.stories if not _is_order(story)}


def check(played: Played, ledger: Sequence[Line], book: Book, *, deaths: int) -> None:
    """Do nothing if every promise was kept.

    Raises:
        Broken: some were not.
    """
    broken = [*_of_orders(played, ledger, deaths), *_of_cast(played, book), *_of_world(played, ledger, deaths)]
    for story in played.stories:
        if not _is_order(story):
            broken += [f"{story.order}: {what}" for what in _of_run(story, played, book, ledger)]
    if broken:
        raise Broken("\n".join(broken))


def _is_order(story: Story) -> bool:
    return story.order.startswith("order-")


def _act(story: Story) -> str:
    return story.order.partition("/")[0]


def _general(story: Story) -> str:
    """Return a run's place in its family, whatever the family's name."""
    act = _act(story)
    return act.partition("-")[0] + story.order.removeprefix(act).replace(act, "@")


def _of_orders(played: Played, ledger: Sequence[Line], deaths: int) -> Iterator[str]:
    """The acts of orders have a judge of their own."""
    orders = tuple(story for story in played.stories if _is_order(story))
    bookings = tuple(name for name in played.bookings if name.startswith("order-"))
    try:
        judge.check(Report(orders, bookings, played.findings, played.left), ledger, deaths=deaths)
    except Broken as broken:
        yield str(broken)


def _of_cast(played: Played, book: Book) -> Iterator[str]:
    """Each act has the children of an unbroken one, none twice and none without a parent."""
    there: dict[str, set[str]] = {}
    for story in played.stories:
        if not _is_order(story):
            there.setdefault(_act(story), set()).add(_general(story))
    for act, places in there.items():
        kind = act.partition("-")[0]
        wanted = {place for place in book if place.partition("/")[0] == kind}
        if places != wanted:
            yield f"{act} has {sorted(places - wanted)} too many and lacks {sorted(wanted - places)}"


# One run


def _of_run(story: Story, played: Played, book: Book, ledger: Sequence[Line]) -> Iterator[str]:
    seqs = [event.seq for event in story.events]
    if seqs != list(range(1, len(seqs) + 1)):
        yield f"its entries are numbered {seqs}"
    ends = [event for event in story.events if isinstance(event, e.RunFinished)]
    if len(ends) != 1 or story.events[-1] is not ends[0]:
        yield f"it is {story.status} ({story.reason}), and its journal ends with {story.events[-1].type}"
        return
    mine, wanted = _facts(story, played.stories), book.get(_general(story), {})
    for branch in sorted({*mine, *wanted}):
        if mine.get(branch) != wanted.get(branch):
            difference = judge.difference(mine.get(branch, ()), wanted.get(branch, ()))
            yield f"branch {branch!r} is not that of an unbroken run:\n{difference}"
    yield from _times(story)
    yield from judge.sent_and_lost(story, [line for line in ledger if line.get("order") == story.order])
    for line in ledger:
        if line["what"] == "told" and line["order"] == story.order and story.result[line["name"]] != line["value"]:
            yield f"{line['name']} had come to {line['value']}, and now to {story.result[line['name']]}"


def _facts(story: Story, stories: Sequence[Story]) -> Facts:
    """Return a journal without what deaths add and what no two runs share: ids, times and chance have names instead."""
    names = _names(story, stories)
    facts: dict[str, list[str]] = {}
    begun: set[str] = set()
    for event in story.events:
        fact = _fact(event)
        if fact is None or (isinstance(event, e.StepStarted) and event.step in begun):
            continue
        step = getattr(event, "step", None) or ""
        if isinstance(event, e.StepStarted):
            begun.add(step)
        text = msgspec.json.encode(fact).decode()
        for own, name in names.items():
            text = text.replace(own, name)
        facts.setdefault(step.rpartition("/")[0].replace(_act(story), "@"), []).append(text)
    return facts


def _names(story: Story, stories: Sequence[Story]) -> dict[str, str]:
    """Return what stands for each thing that another run has otherwise; what is not as derived keeps its difference."""
    names = {other.run: f"<{_general(other)}>" for other in stories if _act(other) == _act(story)}
    seed = story.events[0].seed
    for generation in range(GENERATIONS):
        names[str(derived_uuid(seed, f"{generation}/uuid#1"))] = f"<uuid {generation}>"
        names[msgspec.json.encode(derived_random(seed, str(generation)).random()).decode()] = f"<chance {generation}>"
    for event in story.events:
        if isinstance(event, e.ValueTaken) and event.name == "now":
            names[str(event.value)] = f"<now {event.step}>"
    return {**names, _act(story): "@"}


def _fact(event: Any) -> tuple[Any, ...] | None:
    """Return what an unbroken run has of an event too; None for what only a death or a rest adds."""
    match event:
        case e.RunResumed() | e.RunParked() | e.StepDoubted() | e.StepResolved(outcome="not_done"):
            return None
        case e.StepResolved(outcome="done"):
            return "StepCompleted", event.step, event.value
        case e.RunStarted():
            return event.type, event.name, event.value, event.parent
        case e.StepStarted():
            return event.type, event.step, event.effect, event.waits
        case e.StepFailed():
            return event.type, event.step, event.error.type, event.error.message, event.cancelled
        case e.SignalReceived():
            return event.type, event.step, event.name, event.value, event.by
        case e.QuestionAnswered():
            return event.type, event.step, event.yes, event.by, event.expired, event.value
        case e.ChildSpawned():
            return event.type, event.step, event.name, event.child
        case e.ChildSettled():
            return event.type, event.step, event.child, event.status, event.value
        case e.CancelReceived():
            return event.type, event.by, event.reason
        case e.RunFinished():
            return event.type, event.status, event.reason, event.value
        case _:
            return event.type, getattr(event, "step", ""), getattr(event, "value", None)


def _times(story: Story) -> Iterator[str]:
    """When a wait is over is fixed when it begins, and no death puts it off."""
    dues: dict[str, set[int | None]] = {}
    for event in story.events:
        for said in event.waits if isinstance(event, e.RunParked) else [event]:
            if isinstance(said, e.StepStarted) and said.effect is not Effect.REPEAT:
                continue
            due = next((getattr(said, name) for name in _DUE if hasattr(said, name)), None)
            if due is not None and not isinstance(said, e.RunStarted) and getattr(said, "kind", "") != "doubt":
                dues.setdefault(said.step, set()).add(due)
    for step, times in dues.items():
        if len(times) > 1:
            yield f"the time of {step} has slid: {sorted(map(str, times))}"


# The world outside


def _of_world(played: Played, ledger: Sequence[Line], deaths: int) -> Iterator[str]:
    """What happened outside happened as often as its policy allows, with the key of its step."""
    own = [line for line in ledger if not str(line.get("order", "order-")).startswith("order-")]
    sent = Counter((line["effect"], line["order"]) for line in own if line["what"] == "request")
    orders = {line["order"] for line in own if line.get("effect") == "pay"}
    for order in orders:
        if sent["pay", order] != 1:
            yield f"pay happened {sent['pay', order]} times for {order}"
    booked = Counter(name for name in played.bookings if not name.startswith("order-"))
    if booked != Counter(dict.fromkeys(orders, 1)):
        yield f"the transactions wrote {booked}"
    keys = {(line["order"], line["key"]) for line in own if line["what"] == "request" and line["effect"] == "hold"}
    wanted = {
        idempotency_key(story.events[0].seed, event.step)
        for story in played.stories
        for event in story.events
        if isinstance(event, e.StepStarted) and event.effect is Effect.KEYED
    }
    by_order, by_key = {order for order, _ in keys}, {key for _, key in keys}
    if not len(keys) == len(by_order) == len(by_key) or not by_key <= wanted:
        yield f"hold was sent with {sorted(keys)}"
    done = Counter((line["step"], line["order"]) for line in own if line["what"] == "did")
    done += Counter({act: times for act, times in sent.items() if act[0] == "hold"})
    for (step, order), times in done.items():
        if times > 1 + deaths:
            yield f"{step} was performed {times} times for {order} in {deaths} deaths"
