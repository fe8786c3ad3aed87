"""What must be true after any deaths: the ledger of the outside world, held against what the store says at the end."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from holdfast import events as e
from holdfast.core.codec import canonical
from holdfast.core.derive import derived_random, derived_uuid, idempotency_key
from tests.chaos.program import PICTURE_BYTES, Report, Story
from tests.chaos.world import Line

ONCE: Final = ("pay", "ship", "sign")
_OF_STEPS: Final = ("StepStarted", "StepCompleted", "StepFailed", "StepDoubted", "StepResolved", "Emitted")
_BLOB: Final = PICTURE_BYTES + 2

Fact = tuple[Any, ...]


class Broken(AssertionError):
    """A promise was broken; each line says which."""


def check(report: Report, ledger: Sequence[Line], *, deaths: int) -> None:
    """Do nothing if every promise was kept.

    Raises:
        Broken: some were not.
    """
    broken = [*_of_store(report, ledger)]
    for story in report.stories:
        lines = [line for line in ledger if line.get("order") == story.order]
        broken += [f"{story.order}: {what}" for what in _of_run(story, lines, deaths)]
    if broken:
        raise Broken("\n".join(broken))


def check_refused(report: Report, since: Sequence[Line]) -> None:
    """Do nothing if code that does not fit what was recorded was refused before it did anything.

    Raises:
        Broken: it was not.
    """
    broken = [f"it is {story.status}: {story.reason}" for story in report.stories if "diverged" not in story.reason]
    broken += [f"the new code acted: {line}" for line in since if line["what"] in ("did", "request")]
    if broken:
        raise Broken("\n".join(broken))


def _of_store(report: Report, ledger: Sequence[Line]) -> Iterator[str]:
    yield from (f"verify found {finding}" for finding in report.findings)
    yield from (f"{what} is left" for what in report.left)
    booked, wanted = Counter(report.bookings), Counter(story.order for story in report.stories)
    if booked != wanted:
        yield f"the transactions wrote {booked}"
    keys = {(line["key"], line["order"]) for line in ledger if line.get("effect") == "hold" and "key" in line}
    if len({key for key, _ in keys}) != len({order for _, order in keys}):
        yield f"idempotency keys and orders do not belong to each other: {sorted(keys)}"


def _of_run(story: Story, lines: Sequence[Line], deaths: int) -> Iterator[str]:
    if story.status != "completed":
        yield f"it is {story.status}: {story.reason}"
        return
    yield from _history(story)
    yield from _acknowledged(story, lines)
    yield from _effects(story, lines, deaths)


# The history


def _history(story: Story) -> Iterator[str]:
    """The result and the journal are those of an unbroken run, but for what a death adds by policy."""
    started = story.events[0]
    if not isinstance(started, e.RunStarted):
        yield f"it begins with {started.type}"
        return
    if [event.seq for event in story.events] != list(range(1, len(story.events) + 1)):
        yield f"its entries are numbered {[event.seq for event in story.events]}"
    facts = unbroken_form(story)
    doubted = ("doubted", "0/ship#1") in facts
    wanted = unbroken(story.order, started.seed, facts, doubted=doubted)
    if facts != wanted:
        yield "its journal is not that of an unbroken run:\n" + difference(facts, wanted)
    if story.result != (result := _result(story.order, started.seed, facts, doubted=doubted)):
        yield f"its result is {story.result}, not {result}"


def unbroken_form(story: Story) -> list[Fact]:
    """Return a journal without what a death adds: resumptions, repeated attempts, doubts and their resolutions."""
    facts: list[Fact] = []
    intended: set[str] = set()
    for event in story.events[1:]:
        match event:
            case e.StepStarted():
                if event.step not in intended:
                    facts.append(("started", event.step, event.digest, str(event.effect)))
                intended.add(event.step)
            case e.StepCompleted():
                facts.append(("completed", event.step, _value(event)))
            case e.StepResolved(outcome="done"):
                facts.append(("completed", event.step, _value(event)))
            case e.StepResolved(outcome="unknown"):
                facts.append(("doubted", event.step))
            case e.StepFailed():
                facts.append(("failed", event.step, event.digest, event.error.type, event.error.message))
            case e.ValueTaken() | e.Emitted():
                facts.append((event.type, event.step, _value(event)))
            case e.RunParked() if event.reason not in ("doubt", "diverged"):
                facts.append(("parked", event.reason, event.step))
            case e.RunFinished():
                facts.append(("finished", str(event.status)))
            case e.RunResumed() | e.StepDoubted() | e.StepResolved() | e.RunParked():
                pass
            case _:
                facts.append((event.type,))
    return facts


def _value(event: Any) -> Any:
    return event.value if event.blob is None else (event.blob.digest, event.blob.size)


def _digest(**named: Any) -> str:
    return hashlib.sha256(canonical(named, "")).hexdigest()


def _tagged(order: str, seed: str) -> tuple[str, float]:
    return str(derived_uuid(seed, "0/uuid#1")), derived_random(seed, "0").random()


def unbroken(order: str, seed: str, facts: Sequence[Fact], *, doubted: bool) -> list[Fact]:
    """Return the journal of an unbroken run with this seed; the time that it took is the one that it recorded."""
    plain = _digest(order=order)
    ident, chance = _tagged(order, seed)
    picture = json.dumps(order[0] * PICTURE_BYTES).encode()
    return [
        ("ValueTaken", "0/now#1", _began(facts)),
        ("completed", "0/look#1", {"order": order, "lines": [1, 2, 3]}),
        ("completed", "0/count#1", 6),
        ("completed", "0/tag#1", f"{order} {ident} {chance!r}"),
        ("started", "0/hold#1", plain, "keyed"),
        ("completed", "0/hold#1", f"held {order}"),
        ("completed", "0/tell#1", "one two three"),
        ("Emitted", "0/emit#1", {"halfway": order}),
        ("failed", "0/insist#1", plain, "ConnectionError", "attempt 1"),
        ("failed", "0/insist#1", plain, "ConnectionError", "attempt 2"),
        ("completed", "0/insist#1", 3),
        ("started", "0/pay#1", plain, "once"),
        ("completed", "0/pay#1", f"paid {order}"),
        ("failed", "0/return_later#1", plain, "ConnectionError", "come back later"),
        ("parked", "retry", "0/return_later#1"),
        ("completed", "0/return_later#1", 2),
        ("started", "0/ship#1", plain, "once"),
        ("doubted", "0/ship#1") if doubted else ("completed", "0/ship#1", f"shipped {order}"),
        ("started", "0/sign#1", plain, "once"),
        ("completed", "0/sign#1", f"signed {order}"),
        ("completed", "0/book#1", 1),
        ("failed", "0/refuse#1", plain, "ValueError", f"no {order}"),
        ("completed", "0/paint#1", (hashlib.sha256(picture).hexdigest(), _BLOB)),
        ("finished", "completed"),
    ]


def _began(facts: Sequence[Fact]) -> Any:
    return next((fact[2] for fact in facts if fact[:2] == ("ValueTaken", "0/now#1")), None)


def _result(order: str, seed: str, facts: Sequence[Fact], *, doubted: bool) -> dict[str, Any]:
    ident, chance = _tagged(order, seed)
    return {
        "began": _began(facts), "found": {"order": order, "lines": [1, 2, 3]}, "total": 6,
        "tagged": f"{order} {ident} {chance!r}", "held": f"held {order}", "told": "one two three", "insisted": 3,
        "paid": f"paid {order}", "returned": 2, "shipped": "in doubt" if doubted else f"shipped {order}",
        "signed": f"signed {order}", "booked": 1, "refused": f"ValueError: no {order}", "picture": PICTURE_BYTES,
    }  # fmt: skip


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    """Say where what was found first differs from what was wanted."""
    at = next((n for n, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(wanted))
    return f"  at place {at}: found {list(found[at : at + 3])}\n  wanted {list(wanted[at : at + 3])}"


# What was acknowledged


def _acknowledged(story: Story, lines: Sequence[Line]) -> Iterator[str]:
    """Nothing that a call returned or a stream sent is taken back or told differently later."""
    yield from sent_and_lost(story, lines)
    values = _values(story)
    recorded_at = {_name(event.step): event.at for event in story.events if event.type in _OF_STEPS}
    for line in lines:
        match line["what"]:
            case "ack" if values.get(line["step"]) != line["value"]:
                value = values.get(line["step"])
                yield f"step {line['step']} had returned {_short(line['value'])}, and now {_short(value)}"
            case "ack" if recorded_at[line["step"]] > line["t"]:
                yield f"step {line['step']} had returned, and was recorded only later"


def sent_and_lost(story: Story, lines: Sequence[Line]) -> Iterator[str]:
    """What a stream sent stands as it was sent, and the key that a run was started with is its own."""
    there = {event.seq: known for event, known in zip(story.events, story.digests, strict=True)}
    for line in lines:
        match line["what"]:
            case "entry" if there.get(line["seq"]) != line["digest"]:
                fate = "another one now" if line["seq"] in there else "lost"
                yield f"entry {line['seq']} was sent, and is {fate}"
            case "started" if line["run"] != story.run:
                yield f"its key belonged to run {line['run']}, and now to {story.run}"


def _short(value: Any) -> str:
    return f"{value!s:.60}"


def _values(story: Story) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for event in story.events:
        match event:
            case e.StepCompleted() | e.StepResolved(outcome="done"):
                step = _name(event.step)
                values[step] = event.value if event.blob is None else story.order[0] * PICTURE_BYTES
            case e.StepResolved(outcome="unknown"):
                values[_name(event.step)] = "in doubt"
            case e.StepFailed(retry_at=None):
                values[_name(event.step)] = f"{event.error.type}: {event.error.message}"
    return values


def _name(step: str) -> str:
    return step.removeprefix("0/").removesuffix("#1")


# What happened outside


def _effects(story: Story, lines: Sequence[Line], deaths: int) -> Iterator[str]:
    """Each effect happened as often as its policy allows, with the right key, and never after its outcome was sent."""
    sent = Counter(line["effect"] for line in lines if line["what"] == "request")
    doubted = any(isinstance(event, e.StepDoubted) and event.step == "0/ship#1" for event in story.events)
    for effect in ONCE:
        least = 0 if effect == "ship" and doubted else 1
        if not least <= sent[effect] <= 1:
            yield f"{effect} happened {sent[effect]} times"
    if doubted and not deaths:
        yield "ship was doubted although nobody died"
    keys = {line["key"] for line in lines if line["what"] == "request" and line["effect"] == "hold"}
    if keys != {idempotency_key(story.events[0].seed, "0/hold#1")}:
        yield f"hold was sent with {sorted(keys)}"
    done = Counter(line["step"] for line in lines if line["what"] == "did") + Counter({"hold": sent["hold"]})
    for step, times in done.items():
        least = {"insist": 3, "return_later": 2}.get(step, 1)
        if not least <= times <= least + deaths:
            yield f"{step} was performed {times} times in {deaths} deaths"
    yield from _repeated(story, lines)


def _repeated(story: Story, lines: Sequence[Line]) -> Iterator[str]:
    """Work whose outcome was committed, as the stream had said, is not done again."""
    closing = {event.seq: _name(event.step) for event in story.events if _closes(event)}
    closed: set[str] = set()
    for line in lines:
        if line["what"] == "entry" and line["seq"] in closing:
            closed.add(closing[line["seq"]])
        elif (step := line.get("step") if line["what"] == "did" else line.get("effect")) in closed:
            yield f"{step} was performed again after its outcome was committed"


def _closes(event: Any) -> bool:
    match event:
        case e.StepCompleted() | e.StepFailed(retry_at=None):
            return True
        case e.StepResolved():
            return event.outcome != "not_done"
        case _:
            return False
