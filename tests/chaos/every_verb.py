"""Kills of a process that serves every verb, by chance, on both databases."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.testing.killer import Killer, TrialFailed
from tests.chaos.campaign import Result, Shared, Tick, in_two
from tests.chaos.judge import Broken
from tests.chaos.kills import scratch
from tests.chaos.theatre import Theatre, Trial, new_killer
from tests.rigs.server import Server, in_schema


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Kill casts by chance until `wanted` deaths were died, half of them on each database."""
    shared, started = Shared(tick), time.monotonic()
    _kill(shared, f"{seed}/sqlite", wanted - wanted // 2, Theatre)
    with Server() as server:
        _kill(shared, f"{seed}/postgresql", wanted // 2, partial(_on, server))
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _on(server: Server, killer: Killer, folder: Path) -> Theatre:
    return Theatre(killer, folder, address=in_schema(server.database(f"theatre_{folder.name}"), "hf"))


def _kill(shared: Shared, seed: str, wanted: int, theatre_for: Callable[[Killer, Path], Theatre]) -> None:
    of_store = f"on_{seed.rpartition('/')[2]}"

    def work(killer: Killer, folder: Path) -> None:
        theatre = theatre_for(killer, folder)
        book = theatre.book()
        while shared.count(of_store) < wanted and not shared.hopeless:
            name = f"{seed}/{shared.draw()}"
            trial = Trial.of_seed(name)
            try:
                ended = trial.play(theatre, book)
            except (Broken, TrialFailed) as error:
                shared.done(0, f"seed {name}, --replay {trial}: {error}", trials=1, broken=1)
            else:
                counts = {"kills": ended.deaths, of_store: ended.deaths, "runs": len(ended.played.stories)}
                shared.done(ended.deaths, None, trials=1, during_recovery=max(0, ended.deaths - 1), **counts)
                shared.add({f"acts of {name.partition('-')[0]}": 1 for name in trial.cast})

    in_two(work, new_killer)


def replay(text: str) -> str | None:
    """Play one trial on SQLite again and return what it broke, if anything."""
    with scratch() as folder, new_killer() as killer:
        theatre = Theatre(killer, folder / "replay")
        try:
            Trial.parse(text).play(theatre, theatre.book())
        except (Broken, TrialFailed) as error:
            return str(error)
    return None
