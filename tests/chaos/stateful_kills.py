"""Processes that hold a conversation which the provider keeps, killed at every point of it, then by chance."""

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec

import holdfast as hf
from holdfast.core import entry as e
from holdfast.core.transcript import transcript
from holdfast.store.clock import system_clock
from holdfast.testing.killer import AtPoint, Killer, Outcome, TrialFailed
from tests.chaos import keeping
from tests.chaos.campaign import Result, Shared, Tick, in_two
from tests.chaos.homes import home, locks
from tests.chaos.judge import Broken
from tests.chaos.kept import EXCHANGE, faults_of, owed
from tests.chaos.kills import SEAM, scratch
from tests.rigs.provider import Provider, Turn
from tests.rigs.provider.generation import Generation
from tests.rigs.provider.server import Heard
from tests.rigs.server import Server, in_schema

KINDS: Final = ("openai", "gemini")
_PAUSE_SECONDS: Final = 0.002
"""How long the provider thinks about each event, so that some die while it does."""
_TIMEOUT_SECONDS: Final = 90.0


def new_killer() -> Killer:
    """Return a server for these trials."""
    preload = ("tests.chaos.keeping", "structlog", "holdfast.testing.killer")
    return Killer(preload=preload, seam=SEAM, timeout_seconds=_TIMEOUT_SECONDS)


class Prompter(Provider):
    """Says to each question what belongs to it, and the same whenever it is asked again."""

    def next_turn(self, heard: Heard, model: str) -> Turn:
        asked = json.dumps(heard.json["input"], ensure_ascii=False)
        answer = next((answer for text, answer in keeping.ANSWERS.items() if text in asked), keeping.RESULT)
        return Turn(answer, pause_seconds=_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation at its end, from both sides."""

    said: tuple[str, ...]
    turns: tuple[tuple[e.Entry, ...], ...]
    made: tuple[Generation, ...]
    spent: tuple[int, ...]
    left: tuple[str, ...]
    deaths: tuple[str, ...]
    """The points that were died at."""

    @property
    def transcript(self) -> Any:
        """What was said, as plain data."""
        return [msgspec.to_builtins(transcript(turn)) for turn in self.turns]

    @property
    def doubts(self) -> int:
        """How many creations were doubted."""
        return sum(isinstance(one, e.StepDoubted) and EXCHANGE in one.step for turn in self.turns for one in turn)


@dataclass(slots=True)
class Shelf:
    """A place for one conversation after another: a store, and a provider that outlives whoever asks it."""

    killer: Killer
    folder: Path
    kind: str = "openai"
    address: str | None = None
    twin: str = ""
    provider: Prompter | None = None

    def __enter__(self) -> Self:
        self.provider = Prompter()
        self.provider.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.provider is not None
        self.provider.__exit__(*exception)

    @property
    def _place(self) -> str:
        return self.address or str(self.folder / "store")

    def unbroken(self) -> tuple[int, Kept]:
        """Return how many points a process comes to that does not die, and the conversation."""
        points, kept = self.held(())
        check(kept, kept)
        return points, kept

    def trial(self, deaths: Sequence[AtPoint], wanted: Kept) -> Kept:
        """Let processes die these deaths, one after the other, and judge what they leave.

        Raises:
            Broken: a promise was broken.
            TrialFailed: a process ended otherwise than by finishing or by the death it was given.
        """
        _, kept = self.held(deaths)
        check(kept, wanted)
        return kept

    def held(self, deaths: Sequence[AtPoint]) -> tuple[int, Kept]:
        """Hold a conversation to its end; return how many points the last process came to, and the conversation."""
        home(self._place).clear()
        provider = self.provider
        assert provider is not None
        before = len(provider.made(self.kind))
        lives = [self._life(death) for death in deaths]
        died = [life.last for life in lives if life.killed]
        outcome = self._life(None)
        said = [tuple(life.result()) for life in (*lives, outcome) if not life.killed][-1]
        turns, spent, lock_folder = asyncio.run(self._look())
        _, left = home(self._place).look()
        left = (*left, *(f"the lock {lock}" for lock in locks(lock_folder)))
        made = tuple(provider.made(self.kind)[before:])
        return outcome.points, Kept(said, turns, made, spent, tuple(left), tuple(died))

    def _life(self, death: AtPoint | None) -> Outcome:
        assert self.provider is not None
        return self.killer.run(keeping.converse, self._place, self.kind, self.provider.url, self.twin, die=death)

    async def _look(self) -> tuple[tuple[tuple[e.Entry, ...], ...], tuple[int, ...], str | None]:
        store = await home(self._place).open(system_clock)
        turns, spent = [], []
        async with hf.open(store, keeping.app(), work=False) as runtime:
            for number in range(len(keeping.TURNS)):
                run = await runtime.get(key=f"turn-{number}")
                events = [event async for event in run.events(follow=False)]
                turns.append(tuple(event for event in events if isinstance(event, e.Entry)))
                budget = (await run.info()).budget or {}
                spent.append(int(budget["tokens"]["spent"]))
            findings = [finding.what async for finding in runtime.client.verify()]
        if findings:
            raise Broken(f"verify found {findings}")
        return tuple(turns), tuple(spent), store.lock_folder


def check(kept: Kept, wanted: Kept) -> None:
    """Judge a conversation by its journal, by what the provider has made, and by an unbroken one.

    Raises:
        Broken: they differ, something was made twice without a doubt, a chain forks, or somebody was not charged.
    """
    wrong = faults_of(kept.turns, kept.made, lost=None if kept.deaths else 0)
    if kept.said != wanted.said:
        wrong.append(f"it was said {kept.said}")
    if kept.transcript != wanted.transcript:
        wrong.append(f"the transcript is another: {kept.transcript}")
    if kept.doubts > len(kept.deaths):
        wrong.append(f"{kept.doubts} doubts came of {len(kept.deaths)} deaths")
    known = [death for death in kept.deaths if _knew(death)]
    if len(known) == len(kept.deaths) and kept.doubts:
        wrong.append(f"it was doubted although the id had come: {known}")
    for turn, spent in zip(kept.turns, kept.spent, strict=True):
        if spent != owed(turn):
            wrong.append(f"{spent} tokens were charged for {owed(turn)}")
    wrong += [f"{what} is left" for what in kept.left]
    if wrong:
        raise Broken(f"died at {list(kept.deaths)}: " + "; ".join(wrong))


def _knew(death: str) -> bool:
    """Say whether who died at a point had committed the id: it is, before a second event is asked for."""
    event = re.fullmatch(r"event (\d+)", death)
    return event is not None and int(event[1]) > 1


@dataclass(frozen=True, slots=True)
class Trial:
    """The provider, and the points that processes die at; written `gemini:57,3`."""

    kind: str
    deaths: tuple[int, ...]

    @classmethod
    def nth(cls, kind: str, number: int, points: int, seed: str) -> "Trial":
        """Return the trial of a number: each point in its turn, then several deaths by chance."""
        if number <= points:
            return cls(kind, (number,))
        chance = random.Random(f"{seed}/{number}")
        # Fewer than the claims without progress after which a run would rightly be quarantined.
        later = [chance.randint(1, max(8, int(points * chance.choice((0.05, 0.2, 0.5))))) for _ in range(2)]
        return cls(kind, (chance.randint(1, points), *later[: chance.choice((1, 1, 2))]))

    @classmethod
    def parse(cls, text: str) -> "Trial":
        """Return the trial of this text.

        Raises:
            ValueError: it is not one.
        """
        kind, _, deaths = text.partition(":")
        return cls(kind, tuple(map(int, deaths.split(","))))

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(map(str, self.deaths))}"

    def play(self, shelf: Shelf, wanted: Kept) -> Kept:
        """Play it; what is broken is raised."""
        return shelf.trial([AtPoint(nth) for nth in self.deaths], wanted)


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Let processes die until `wanted` deaths were died, a quarter of them with each provider on each database."""
    shared, started = Shared(tick), time.monotonic()
    part = max(1, wanted // 4)
    for kind in KINDS:
        _kill(shared, kind, f"{seed}/sqlite", part, partial(_on_file, kind))
    with Server() as server:
        for kind in KINDS:
            _kill(shared, kind, f"{seed}/postgresql", part, partial(_on_server, server, kind))
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _on_file(kind: str, killer: Killer, folder: Path) -> Shelf:
    return Shelf(killer, folder, kind)


def _on_server(server: Server, kind: str, killer: Killer, folder: Path) -> Shelf:
    return Shelf(killer, folder, kind, in_schema(server.database(f"{kind}_{folder.name}"), "hf"))


def _kill(shared: Shared, kind: str, seed: str, wanted: int, shelf_for: Callable[[Killer, Path], Shelf]) -> None:
    name = f"{kind}_on_{seed.rpartition('/')[2]}"
    first = shared.draw()

    def work(killer: Killer, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with shelf_for(killer, folder) as shelf:
            points, unbroken = shelf.unbroken()
            shared.most(**{f"points_{kind}": points})
            while shared.count(name) < wanted and not shared.hopeless:
                trial = Trial.nth(kind, shared.draw() - first, points, seed)
                try:
                    kept = trial.play(shelf, unbroken)
                except (Broken, TrialFailed) as error:
                    shared.done(0, f"{name}, --replay stateful_kills:{trial}: {error}", trials=1, broken=1)
                else:
                    _count(shared, name, kept, len(unbroken.made))

    in_two(work, new_killer)


def _count(shared: Shared, name: str, kept: Kept, wanted: int) -> None:
    deaths = len(kept.deaths)
    in_stream = sum(death.startswith("event") for death in kept.deaths)
    shared.done(deaths, None, trials=1, kills=deaths, during_recovery=max(0, deaths - 1), in_mid_stream=in_stream)
    shared.add({name: deaths, "doubts": kept.doubts, "made": len(kept.made), "made_and_lost": len(kept.made) - wanted})


def replay(text: str) -> str | None:
    """Play one trial on SQLite again and return what it broke, if anything."""
    trial = Trial.parse(text)
    with scratch() as folder, new_killer() as killer, Shelf(killer, folder, trial.kind) as shelf:
        _, unbroken = shelf.unbroken()
        try:
            trial.play(shelf, unbroken)
        except (Broken, TrialFailed) as error:
            return str(error)
    return None
