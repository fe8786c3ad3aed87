"""The campaigns: thousands of trials by seed, two at a time, each failure with what plays it again."""

import random
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from holdfast import events as e
from holdfast.testing.disk import Metadata
from holdfast.testing.killer import AtCall, AtPoint, Killer, TrialFailed
from tests.chaos.commits import MORTAL, Cut, Line, every_cut
from tests.chaos.controls import CONTROLS
from tests.chaos.judge import Broken
from tests.chaos.kills import Death, Ended, Stage, new_killer, orders, scratch
from tests.chaos.losses import Loss, Refused
from tests.rigs.proxy import Kind, Proxy
from tests.rigs.server import Server, in_schema

Tick = Callable[[int], None]
"""Told how much further a campaign has come."""

_POINTS: Final = (0, 100, 175, 245, 270, 275, 310)
_CALLS: Final = (0, 425, 650, 850, 900, 900, 900)
"""About how many places to die at there are, by the number of runs; fixed, so that a seed alone makes its trial."""
KILLS_POSTGRES: Final = "kills_postgres"
_IMAGES_EACH: Final = 1000
_LINES: Final = 6
"""How many lines are cut at once: most of the time a program waits for one that hangs."""
_MOST_FAILURES: Final = 20


@dataclass(slots=True)
class Result:
    """What a campaign came to: its numbers by name, and every failure in words."""

    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, **counts: int) -> None:
        """Count on."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs at once, and the deaths that their program dies one after the other; written `3:p57,c12b`."""

    runs: int
    deaths: tuple[Death, ...]

    @classmethod
    def of_seed(cls, seed: str, *, calls: bool = True) -> "Trial":
        """Return the trial that a seed stands for, with deaths at file calls or not; every second kills recoveries."""
        chance = random.Random(seed)
        runs = chance.choice((1, 1, 1, 2, 2, 3, 4, 6))
        deaths = [_death(chance, runs, first=True, calls=calls)]
        if chance.random() < 0.5:
            # Fewer deaths than the claims without progress after which a run would rightly be quarantined.
            deaths += [_death(chance, runs, first=False, calls=calls) for _ in range(chance.choice((1, 2, 3)))]
        return cls(runs, tuple(deaths))

    @classmethod
    def parse(cls, text: str) -> "Trial":
        """Return the trial of this text.

        Raises:
            ValueError: it is not one.
        """
        runs, _, deaths = text.partition(":")
        return cls(int(runs), tuple(_parsed(death) for death in deaths.split(",")))

    def __str__(self) -> str:
        return f"{self.runs}:{','.join(_written(death) for death in self.deaths)}"


def _death(chance: random.Random, runs: int, *, first: bool, calls: bool) -> Death:
    # A recovery is shorter than what it recovers, so it is mostly killed early.
    share = 1.0 if first else chance.choice((0.1, 0.3, 0.6))
    if not calls or chance.random() < 0.6:
        return AtPoint(chance.randint(1, int(_POINTS[runs] * share)))
    return AtCall(chance.randint(1, int(_CALLS[runs] * share)), chance.choice(("before", "after")))


def _written(death: Death) -> str:
    return f"p{death.nth}" if isinstance(death, AtPoint) else f"c{death.nth}{death.when[0]}"


def _parsed(text: str) -> Death:
    found = re.fullmatch(r"p(\d+)|c(\d+)([ba])", text)
    if found is None:
        raise ValueError(f"{text!r} is no death: write p57, c12b or c12a")
    if found[1]:
        return AtPoint(int(found[1]))
    return AtCall(int(found[2]), "before" if found[3] == "b" else "after")


class Shared:
    """A result that two threads add to, and the numbers that they draw their work from."""

    def __init__(self, tick: Tick) -> None:
        self.result = Result()
        self._tick = tick
        self._lock = threading.Lock()
        self._next = 0

    def draw(self) -> int:
        """Return the next number."""
        with self._lock:
            self._next += 1
            return self._next

    def done(self, progress: int, failure: str | None = None, **counts: int) -> None:
        """Add a trial's outcome."""
        with self._lock:
            self.result.add(**counts)
            if failure is not None:
                self.result.failures.append(failure)
        self._tick(progress)

    def add(self, counts: Mapping[str, int]) -> None:
        """Count on."""
        with self._lock:
            self.result.add(**counts)

    def most(self, **counts: int) -> None:
        """Keep the largest of each number."""
        with self._lock:
            for name, count in counts.items():
                self.result.counts[name] = max(count, self.result.counts.get(name, 0))

    def count(self, name: str) -> int:
        """Return a number so far."""
        return self.result.counts.get(name, 0)

    @property
    def hopeless(self) -> bool:
        """True when there is more to mend than to find."""
        return len(self.result.failures) >= _MOST_FAILURES


def in_two(work: Callable[[Killer, Path], None], new: Callable[[], Killer] = new_killer) -> None:
    """Do `work` on two killers at once."""
    beside(2, work, new)


def beside(count: int, work: Callable[[Killer, Path], None], new: Callable[[], Killer] = new_killer) -> None:
    """Do `work` on so many killers at once."""
    with scratch() as folder, ExitStack() as open_, ThreadPoolExecutor(count) as threads:
        killers = [open_.enter_context(new()) for _ in range(count)]
        parts = [threads.submit(work, killer, folder / str(at)) for at, killer in enumerate(killers)]
        for part in parts:
            part.result()


def kills(seed: int, wanted: int, tick: Tick) -> Result:
    """Kill programs until `wanted` deaths were died, about half of them by recoveries."""
    return _killing(Stage, seed, wanted, tick, calls=True)


def kills_postgres(seed: int, wanted: int, tick: Tick) -> Result:
    """Kill programs whose store is on PostgreSQL, each of two at a time in a database to itself."""
    with Server() as server:
        return _killing(partial(_stage_on, server), seed, wanted, tick, calls=False)


def _stage_on(server: Server, killer: Killer, folder: Path) -> Stage:
    return Stage(killer, folder, address=in_schema(server.database(f"stage_{folder.name}"), "hf"))


def _killing(stage_for: Callable[[Killer, Path], Stage], seed: int, wanted: int, tick: Tick, *, calls: bool) -> Result:
    shared, started = Shared(tick), time.monotonic()

    def work(killer: Killer, folder: Path) -> None:
        stage = stage_for(killer, folder)
        while shared.count("kills") < wanted and not shared.hopeless:
            name = f"{seed}/{shared.draw()}"
            trial = Trial.of_seed(name, calls=calls)
            try:
                ended = stage.trial(orders(trial.runs), trial.deaths)
            except (Broken, TrialFailed) as error:
                shared.done(0, f"seed {name}, --replay {trial}: {error}", trials=1, broken=1)
            else:
                again = max(0, ended.deaths - 1)
                shared.done(ended.deaths, trials=1, kills=ended.deaths, during_recovery=again, runs=trial.runs)
                shared.add(_doubts(ended))

    in_two(work)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _doubts(ended: Ended) -> Counter[str]:
    """Count what deaths left in doubt, by who ended it and how."""
    events = [event for story in ended.report.stories for event in story.events]
    doubts = Counter({"doubts": sum(isinstance(event, e.StepDoubted) for event in events)})
    words = {"done": "done", "not_done": "not done", "unknown": "unknown"}
    return doubts + Counter(
        f"ended by {event.how} as {words[event.outcome]}" for event in events if isinstance(event, e.StepResolved)
    )


def power(seed: int, wanted: int, tick: Tick) -> Result:
    """Take up `wanted` different disks, from recordings of one and of several runs."""
    shared, started = Shared(tick), time.monotonic()
    disks: set[bytes] = set()

    def work(killer: Killer, folder: Path) -> None:
        while len(disks) < wanted and not shared.hopeless:
            number = shared.draw()
            runs, metadata = (1, 3, 1, 2)[number % 4], list(Metadata)[number // 4 % 2]
            # Every third recording is that of a recovery.
            death = AtPoint(random.Random(number).randint(4, _POINTS[runs] * 3 // 4)) if number % 3 == 0 else None
            loss = Loss(killer, folder, orders(runs), death=death)
            shared.done(0, recordings=1, of_recoveries=int(death is not None))
            limit = min(_IMAGES_EACH, wanted)
            for image in loss.images(seed=seed + number, limit=limit, metadata=metadata):
                if len(disks) >= wanted or shared.hopeless:
                    break
                if image.digest in disks:
                    continue
                disks.add(image.digest)
                refused = loss.verdict(image)
                failure = None if refused is None else _kept(loss, refused)
                shared.done(1, failure, images=1, acknowledgements=len(image.acks))

    in_two(work)
    shared.result.add(different_disks=len(disks))
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _kept(loss: Loss, refused: Refused) -> str:
    """Keep the recording of a refused image, and say how to look at it again."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    loss.recording.save(folder / "recording")
    kept = f"image_named(Recording.load({str(folder / 'recording')!r}), {refused.name!r})"
    return f"{refused.name}: {refused.story}; {kept}: {refused.broken}"


def commits(seed: int, wanted: int, tick: Tick) -> Result:
    """Cut the line at each write of one run in every way, then by chance, until `wanted` lines were cut."""
    shared, started = Shared(tick), time.monotonic()
    with Server() as server:

        def work(killer: Killer, folder: Path) -> None:
            with Proxy(server.port) as proxy:
                line = Line(killer, folder, server, proxy)
                in_turn = [*every_cut(line, tuple(Kind)), *every_cut(line, MORTAL, dies=True)]
                while shared.count("cuts") < wanted and not shared.hopeless:
                    number = shared.draw()
                    cut = in_turn[number - 1] if number <= len(in_turn) else Cut.of_seed(f"{seed}/{number}")
                    _cut_one(shared, line, cut)

        beside(_LINES, work)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _cut_one(shared: Shared, line: Line, cut: Cut) -> None:
    try:
        survived = line.trial(cut)
    except (Broken, TrialFailed) as error:
        shared.done(1, f"--replay {cut}: {error}", trials=1, cuts=1, broken=1)
        return
    shared.done(int(survived.cut), trials=1, cuts=int(survived.cut), runs=cut.runs)
    if survived.cut:
        shared.add({f"{cut.verb} {cut.kind.name.lower()}": 1, "died_too": int(cut.dies)})


def controls(seed: int, wanted: int, tick: Tick) -> Result:
    """Play the negative controls in turn: each twin must be caught, and Holdfast never accused."""
    shared, started = Shared(tick), time.monotonic()
    plays = [(CONTROLS[number % len(CONTROLS)], seed + number // len(CONTROLS)) for number in range(wanted)]

    def work(killer: Killer, folder: Path) -> None:
        while (drawn := shared.draw()) <= len(plays):
            control, own_seed = plays[drawn - 1]
            said = control.caught(killer, folder, own_seed)
            caught = said is not None and re.search(control.says, said) is not None
            missed = None if caught else f"{control.twin}, seed {own_seed}: not caught ({said})"
            shared.done(0, missed, twins_played=1, twins_caught=int(caught))
            accused = control.accused(killer, folder, own_seed)
            failure = None if accused is None else f"{control.twin}, seed {own_seed}: Holdfast accused: {accused}"
            shared.done(1, failure, sound_plays=1, falsely_accused=int(accused is not None))

    in_two(work)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def replay(text: str) -> str | None:
    """Play one trial of kills on SQLite, or one of commits, again and return what it broke, if anything."""
    with scratch() as folder, new_killer() as killer:
        try:
            if text.count(":") == 1:
                trial = Trial.parse(text)
                Stage(killer, folder / "replay").trial(orders(trial.runs), trial.deaths)
            else:
                _replay_cut(Cut.parse(text), killer, folder / "replay")
        except (Broken, TrialFailed) as error:
            return str(error)
    return None


def _replay_cut(cut: Cut, killer: Killer, folder: Path) -> None:
    with Server() as server, Proxy(server.port) as proxy:
        Line(killer, folder, server, proxy).trial(cut)


Campaign = Callable[[int, int, Tick], Result]
"""Goes on from a seed until as much was tried as wanted."""
