"""What must be true of a conversation after any deaths: that of an unbroken one, but for what nobody can know."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from holdfast import events as e
from holdfast.core.message import ToolResult
from holdfast.core.status import Effect
from tests.chaos.holding import Talk, plain
from tests.chaos.judge import Broken
from tests.chaos.program import Story
from tests.chaos.talking import KEYED, ONCE

_UNKNOWN: Final = "The outcome is unknown ("


def check(talk: Talk, wanted: Talk) -> None:
    """Do nothing if every promise was kept.

    Raises:
        Broken: some were not.
    """
    broken = [*_of_store(talk), *_of_history(talk, wanted), *_of_requests(talk, wanted), *_of_world(talk, wanted)]
    for story in talk.stories:
        broken += [f"turn {story.order}: {what}" for what in _of_run(story)]
    if broken:
        raise Broken("\n".join(broken))


def _of_store(talk: Talk) -> Iterator[str]:
    yield from (f"verify found {finding}" for finding in talk.findings)
    yield from (f"{what} is left" for what in talk.left)
    digests = {story.run: list(story.digests) for story in talk.stories}
    for onlooker in talk.onlookers:
        yield from (f"an onlooker: {what}" for what in onlooker.broken)
        if onlooker.seen != digests[onlooker.run]:
            yield f"an onlooker saw {len(onlooker.seen)} entries, not the {len(digests[onlooker.run])} that there are"


# What was said


def _of_history(talk: Talk, wanted: Talk) -> Iterator[str]:
    """Every message is that of an unbroken conversation, but for results of which nobody knows."""
    if [story.order for story in talk.stories] != [story.order for story in wanted.stories]:
        yield f"there are the turns {[story.order for story in talk.stories]}"
    unknown = unknown_calls(talk)
    mine, others = plain(talk.history), plain(wanted.history)
    if len(mine) != len(others):
        yield f"{len(mine)} messages were said instead of {len(others)}"
    for place, (found, other) in enumerate(zip(mine, others, strict=False)):
        if _without(found, unknown) != _without(other, unknown):
            yield f"message {place} is {found} instead of {other}"


def _without(message: dict[str, Any], unknown: frozenset[str]) -> Any:
    parts = [
        {"unknown": part["id"]} if part.get("id") in unknown and part["kind"] == "result" else part
        for part in message["parts"]
    ]
    return {**message, "parts": parts}


def unknown_calls(talk: Talk) -> frozenset[str]:
    """Return the ids of the calls whose outcome may be, and is, reported as unknown: those under way at a death."""
    return frozenset(
        result.id
        for story in talk.stories
        for step, result in _results(story)
        if result.text.startswith(_UNKNOWN) and result.error and _was_under_way(story, step)
    )


def _results(story: Story) -> Iterator[tuple[str, ToolResult]]:
    """Yield each result of a run with the branch in which it came."""
    for event in story.events:
        if isinstance(event, e.MessageAdded) and event.role == "tool":
            for part in event.value:
                result = ToolResult(part["id"], part["name"], part["text"], part.get("error", False))
                yield (event.step or "").rpartition("/")[0], result


def _was_under_way(story: Story, branch: str) -> bool:
    """Say whether a `once` step of this branch was begun by an owner who died before its outcome was recorded."""
    intended = resumed = False
    for event in story.events:
        match event:
            case e.StepStarted(effect=Effect.ONCE) if event.step.rpartition("/")[0] == branch:
                intended = True
            case e.RunResumed() if intended:
                resumed = True
            case e.StepDoubted(why="crash") if event.step.rpartition("/")[0] == branch:
                return resumed
            case _:
                pass
    return False


def entries_of(talk: Talk) -> frozenset[tuple[str, str, str]]:
    """Return every entry that a worker may die behind, by its run, its type and its step; a run that ended is over."""
    return frozenset(
        (story.order, event.type, getattr(event, "step", None) or "")
        for story in talk.stories
        for event in story.events
        if not isinstance(event, e.RunParked | e.RunResumed | e.RunFinished)
    )


# One run


def _of_run(story: Story) -> Iterator[str]:
    seqs = [event.seq for event in story.events]
    if seqs != list(range(1, len(seqs) + 1)):
        yield f"its entries are numbered {seqs}"
    ends = [event for event in story.events if isinstance(event, e.RunFinished)]
    if len(ends) != 1 or story.events[-1] is not ends[0] or story.status != "completed":
        yield f"it is {story.status} ({story.reason}), and its journal ends with {story.events[-1].type}"
    said = Counter(event.step for event in story.events if isinstance(event, e.MessageAdded))
    yield from (f"{step} was closed {times} times" for step, times in said.items() if times > 1)


# What the models were asked


def _of_requests(talk: Talk, wanted: Talk) -> Iterator[str]:
    """Whatever is asked again after a death is the same to the byte, and every call in it is answered."""
    unknown = unknown_calls(talk)
    known = {_place(model, body): body for model, body in wanted.requests}
    first: dict[Any, bytes] = {}
    for model, body in talk.requests:
        place = _place(model, body)
        if first.setdefault(place, body) != body:
            yield f"request {place} was sent otherwise after a death"
        if place not in known:
            yield f"a model was asked what it never would have been: {body[-300:].decode()}"
        elif (found := _sent(body, unknown)) != (other := _sent(known[place], unknown)):
            at = next(at for at, pair in enumerate(zip(found, other, strict=True)) if pair[0] != pair[1])
            yield f"request {place} has {found[at]} instead of {other[at]}"
    yield from (f"request {place} was never sent" for place in known if place not in first)


def _place(model: str, body: bytes) -> tuple[str, str, int]:
    """Return which request it is: of which model, in which turn, and after how many messages."""
    messages = json.loads(body)["messages"]
    begun = next(m["content"] for m in reversed(messages) if m["role"] == "user" and m["content"][:1].isdecimal())
    return model, begun, len(messages)


def _sent(body: bytes, unknown: frozenset[str]) -> list[Any]:
    asked = json.loads(body)
    messages = [
        {**message, "content": "<unknown>"} if message.get("tool_call_id") in unknown else message
        for message in asked.pop("messages")
    ]
    return [asked, *messages]


# The world outside


def _of_world(talk: Talk, wanted: Talk) -> Iterator[str]:
    """What happened outside happened as often as its policy allows, with the arguments and the key of its call."""
    deaths, unknown = len(talk.deaths), _unknown_words(talk)
    mine, others = _by_call(talk.ledger), _by_call(wanted.ledger)
    for call in sorted({*mine, *others}):
        tool, done = call[0], mine.get(call, [])
        most = 0 if call not in others else 1 if tool in ONCE else 1 + deaths
        least = 0 if call not in others or call in unknown else 1
        if not least <= len(done) <= most:
            yield f"{' '.join(call)} happened {len(done)} times in {deaths} deaths"
        if len({line.get("cents") for line in [*done, *others.get(call, [])]}) > 1:
            yield f"{' '.join(call)} was done with other arguments"
        if tool in KEYED and len({line["key"] for line in done}) != 1:
            yield f"{' '.join(call)} was done with several keys"
    keys = Counter(key for key, _ in {(line["key"], line["call"]) for line in talk.ledger if "key" in line})
    yield from (f"key {key} is that of {times} calls" for key, times in keys.items() if times > 1)


def _by_call(ledger: Sequence[Any]) -> dict[tuple[str, str], list[Any]]:
    calls: dict[tuple[str, str], list[Any]] = {}
    for line in ledger:
        calls.setdefault((line["tool"], line["call"]), []).append(line)
    return calls


def _unknown_words(talk: Talk) -> set[tuple[str, str]]:
    """Return tool and word of the calls whose outcome is unknown."""
    unknown, words = unknown_calls(talk), set()
    for story in talk.stories:
        for event in story.events:
            if isinstance(event, e.MessageAdded) and event.role == "assistant":
                calls = [part for part in event.value if part["kind"] == "call" and part["id"] in unknown]
                words |= {(part["name"], json.loads(part["arguments"])["what"]) for part in calls}
    return words
