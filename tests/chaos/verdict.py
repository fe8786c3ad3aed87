"""What a tale must have come to, whoever was stopped, killed or cut off meanwhile: judged by the ledger outside."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast import events as e
from holdfast.runtime import Runtime
from tests.chaos.crew import Line


@dataclass(frozen=True, slots=True)
class Story:
    """One tale as its journal and its caller have it, with the ledger's lines about it."""

    number: int
    effect: str
    entries: Sequence[Any]
    result: Any
    lines: Sequence[Line]


async def entries_of(runtime: Runtime, run: str) -> list[Any]:
    """Return a run's journal as it stands."""
    return [event async for event in (await runtime.get(run)).events(follow=False) if hasattr(event, "seq")]


def faults(story: Story) -> Iterator[str]:
    """Say what is wrong with a tale that has ended."""
    for fault in (*_history(story), *_steps(story), *_effects(story), *_acknowledged(story)):
        yield f"tale {story.number} ({story.effect}): {fault}"


def _history(story: Story) -> Iterator[str]:
    """The journal has no hole and no repeat, and ends with its only end."""
    numbers = [entry.seq for entry in story.entries]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its entries are numbered {numbers}"
    ends = [entry for entry in story.entries if isinstance(entry, e.RunFinished)]
    if len(ends) != 1 or story.entries[-1] is not ends[0]:
        yield f"its journal ends with {[entry.type for entry in story.entries[-3:]]}"
    elif ends[0].value != story.result:
        yield f"its caller was told {story.result}, and its journal says {ends[0].value}"


def _steps(story: Story) -> Iterator[str]:
    """Each step is closed once, and the result is made of what they returned."""
    closed = Counter(_name(entry) for entry in story.entries if _closes(entry))
    if closed != {"look": 1, story.effect: 1, "count": 1}:
        yield f"its steps were closed {dict(closed)}"
    number, doubted = story.number, any(isinstance(entry, e.StepDoubted) for entry in story.entries)
    effect = "in doubt" if doubted and story.effect == "pay" else f"{story.effect} {number}"
    if story.result != [f"looked {number}", effect, f"counted {number}"]:
        yield f"its result is {story.result}"


def _effects(story: Story) -> Iterator[str]:
    """What may happen once did not happen twice, and what was recorded as done was done."""
    times = sum(line["what"] == story.effect for line in story.lines)
    least = 0 if "in doubt" in story.result else 1
    if not least <= times <= 1:
        yield f"its effect happened {times} times"


def _acknowledged(story: Story) -> Iterator[str]:
    """Nothing that was returned or accepted is taken back or told differently later."""
    values = dict(zip(("look", story.effect, "count"), story.result, strict=False))
    for line in story.lines:
        if line["what"] in ("ack", "posted") and values.get(line["step"]) != line["value"]:
            yield f"{line['step']} was told to be {line['value']!r}, and is {values.get(line['step'])!r}"


def _closes(entry: Any) -> bool:
    match entry:
        case e.StepCompleted():
            return True
        case e.StepResolved():
            return entry.outcome != "not_done"
        case _:
            return False


def _name(entry: Any) -> str:
    return str(entry.step).removeprefix("0/").removesuffix("#1")
