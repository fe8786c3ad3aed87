"""What is true of a conversation that a provider keeps, by its journal and by what the provider has made of it."""

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.core import entry as e
from holdfast.core.entry import Entry
from tests.rigs.provider.generation import Generation

EXCHANGE = "harness#"


def faults_of(turns: Sequence[Sequence[Entry]], made: Sequence[Generation], *, lost: int | None = None) -> list[str]:
    """Return what is wrong with turns that have ended, in order, and with what was made for them.

    `lost` says how many were made whose id nobody heard; None where that depends on when somebody died.
    """
    entries = [entry for turn in turns for entry in turn]
    doubts = [entry for entry in entries if isinstance(entry, e.StepDoubted) and EXCHANGE in entry.step]
    said = [entry for entry in entries if isinstance(entry, e.MessageAdded) and entry.role == "assistant"]
    return [
        *_chain(entries, made, len(said)),
        *_created(len(said), len(doubts), len(made), lost),
        *_doubted(turns),
        *_unpaid(turns),
        *(f"message {entry.seq} has no usage" for entry in said if (entry.usage or {}).get("input") != 20),
    ]


def tips(entries: Sequence[Entry]) -> list[str]:
    """Return where the harness stood after each exchange, in order."""
    stands = [entry.value for entry in entries if isinstance(entry, e.CursorMoved) and entry.step is not None]
    cursors = [stand["cursor"] for stand in stands if stand is not None and stand.get("cursor") is not None]
    return [str(id) for cursor in cursors for id in cursor.values()]


def _chain(entries: Sequence[Entry], made: Sequence[Generation], said: int) -> Iterator[str]:
    """The chain is as long as what was said, each behind the one before, and nothing goes on beside it."""
    chain, by_id = tips(entries), {one.id: one for one in made}
    if len(chain) != said or len(set(chain)) != said:
        yield f"{said} messages came of {chain}"
    for before, id in zip([None, *chain], chain, strict=False):
        if id not in by_id:
            yield f"{id} was never made"
        elif by_id[id].previous != before:
            yield f"the chain forks: {id} is behind {by_id[id].previous} and not behind {before}"
    beside = [one for one in made if one.previous is not None and one.previous not in chain]
    yield from (f"the chain forks: {one.id} goes on from {one.previous}, which is not in it" for one in beside)


def _created(said: int, doubts: int, made: int, lost: int | None) -> Iterator[str]:
    """Without a doubt each was made once; a doubt allows for one more, which was made or not."""
    if not said <= made <= said + doubts:
        yield f"{made} were made for {said} messages, with {doubts} doubts"
    if lost is not None and made != said + lost:
        yield f"{made} were made for {said} messages, of which {lost} were lost"


def _doubted(turns: Sequence[Sequence[Entry]]) -> Iterator[str]:
    """Nothing is doubted whose id is known."""
    for entries in turns:
        known: dict[str, bool] = {}
        for entry in entries:
            match entry:
                case e.StepStarted(step=step):
                    known[step] = False
                case e.CursorMoved(step=str(step)):
                    known[step] = True
                case e.StepDoubted(step=step) if EXCHANGE in step and known.get(step):
                    yield f"{step} was doubted although its id is known"


def _unpaid(turns: Sequence[Sequence[Entry]]) -> Iterator[str]:
    """Every attempt at an exchange sets something aside before it begins."""
    for entries in turns:
        for entry in entries:
            if isinstance(entry, e.StepStarted) and EXCHANGE in entry.step and not (entry.reserved or {}).get("tokens"):
                yield f"{entry.step} set nothing aside"


def owed(entries: Sequence[Entry]) -> int:
    """Return what a turn owes in tokens: what its messages took, and of each doubt all that was set aside."""
    tokens, aside = 0, {}  # type: int, dict[str, int]
    for entry in entries:
        match entry:
            case e.StepStarted(step=step, reserved=reserved) if EXCHANGE in step:
                aside[step] = (reserved or {}).get("tokens", 0)
            case e.StepDoubted(step=step) if EXCHANGE in step:
                tokens += aside.pop(step, 0)
            case e.MessageAdded(usage=usage):
                tokens += _tokens(usage or {})
    return tokens


def _tokens(usage: dict[str, Any]) -> int:
    return (usage.get("input") or 0) + (usage.get("output") or 0)
