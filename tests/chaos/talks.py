"""Conversations of ten turns whose worker dies at every point of it, then by chance, on both databases."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.testing.killer import AtPoint, Killer, TrialFailed
from tests.chaos.campaign import Result, Shared, Tick, in_two
from tests.chaos.holding import Talk
from tests.chaos.judge import Broken
from tests.chaos.kills import scratch
from tests.chaos.parlour import Parlour, new_killer
from tests.chaos.talk_judge import entries_of, unknown_calls
from tests.rigs.server import Server, in_schema


@dataclass(frozen=True, slots=True)
class Trial:
    """The points that a worker dies at, life after life; written `57,3`."""

    deaths: tuple[int, ...]

    @classmethod
    def nth(cls, number: int, points: int, seed: str) -> "Trial":
        """Return the trial of a number: each point in its turn, then several deaths by chance."""
        if number <= points:
            return cls((number,))
        chance = random.Random(f"{seed}/{number}")
        # Fewer than the claims without progress after which a run would rightly be quarantined.
        later = [
            chance.randint(1, max(8, int(points * chance.choice((0.05, 0.2, 0.5)))))
            for _ in range(chance.choice((1, 1, 2)))
        ]
        return cls((chance.randint(1, points), *later))

    @classmethod
    def parse(cls, text: str) -> "Trial":
        """Return the trial of this text.

        Raises:
            ValueError: it is not one.
        """
        return cls(tuple(map(int, text.split(","))))

    def __str__(self) -> str:
        return ",".join(map(str, self.deaths))

    def play(self, parlour: Parlour, wanted: Talk) -> Talk:
        """Play it; what is broken is raised."""
        return parlour.trial([AtPoint(nth) for nth in self.deaths], wanted, seed=str(self))


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Let workers die until `wanted` deaths were died, half of them on each database."""
    shared, started = Shared(tick), time.monotonic()
    _kill(shared, f"{seed}/sqlite", wanted - wanted // 2, Parlour)
    with Server() as server:
        _kill(shared, f"{seed}/postgresql", wanted // 2, partial(_on, server))
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _on(server: Server, killer: Killer, folder: Path) -> Parlour:
    return Parlour(killer, folder, address=in_schema(server.database(f"parlour_{folder.name}"), "hf"))


def _kill(shared: Shared, seed: str, wanted: int, parlour_for: Callable[[Killer, Path], Parlour]) -> None:
    of_store = f"on_{seed.rpartition('/')[2]}"
    entries: set[Sequence[str]] = set()
    first = shared.draw()

    def work(killer: Killer, folder: Path) -> None:
        with parlour_for(killer, folder) as parlour:
            points, unbroken = parlour.unbroken()
            shared.most(points=points)
            while shared.count(of_store) < wanted and not shared.hopeless:
                trial = Trial.nth(shared.draw() - first, points, seed)
                try:
                    talk = trial.play(parlour, unbroken)
                except (Broken, TrialFailed) as error:
                    shared.done(0, f"{of_store}, --replay talks:{trial}: {error}", trials=1, broken=1)
                else:
                    _count(shared, of_store, talk)
                    entries.update(entry for death in talk.deaths for entry in death.entries)
            all_ = entries_of(unbroken)
            shared.most(**{f"entries_{of_store}": len(all_), f"entries_died_at_{of_store}": len(entries & all_)})

    in_two(work, new_killer)


def _count(shared: Shared, of_store: str, talk: Talk) -> None:
    deaths = len(talk.deaths)
    in_stream = sum(death.point == "a piece" for death in talk.deaths)
    shared.done(deaths, None, trials=1, kills=deaths, during_recovery=max(0, deaths - 1), in_mid_stream=in_stream)
    shared.add({of_store: deaths, "turns": sum("/" not in story.order for story in talk.stories)})
    shared.add(
        {"results unknown": len(unknown_calls(talk)), "connections": sum(one.connections for one in talk.onlookers)}
    )


def replay(text: str) -> str | None:
    """Play one trial on SQLite again and return what it broke, if anything."""
    with scratch() as folder, new_killer() as killer, Parlour(killer, folder / "replay") as parlour:
        _, unbroken = parlour.unbroken()
        try:
            Trial.parse(text).play(parlour, unbroken)
        except (Broken, TrialFailed) as error:
            return str(error)
    return None
