"""The campaign of simulated interleavings: thousands of seeds, on both cores, each of which replays exactly."""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Final

from tests.chaos.campaign import Result, Shared, Tick
from tests.simulation.judge import Broken
from tests.simulation.stage import Play

_AT_ONCE: Final = 50


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Play `wanted` interleavings."""
    shared, started = Shared(tick), time.monotonic()
    seeds = [f"{seed}/{number}" for number in range(wanted)]
    parts = [seeds[first : first + _AT_ONCE] for first in range(0, wanted, _AT_ONCE)]
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        try:
            for done in as_completed([pool.submit(play, part) for part in parts]):
                counts, failures = done.result()
                shared.done(counts["interleavings"], None, **counts)
                for failure in failures:
                    shared.done(0, failure, broken=1)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # who was told to stop does not play the rest
            raise
    shared.result.seconds = time.monotonic() - started
    return shared.result


def play(seeds: Sequence[str]) -> tuple[Counter[str], list[str]]:
    """Play some seeds; return how much was tried, and what was broken."""
    counts, failures = Counter[str](), list[str]()
    for seed in seeds:
        counts["interleavings"] += 1
        try:
            played = Play(seed).run()
        except Broken as broken:
            failures.append(f"--replay simulation:{seed}: {broken}")
            continue
        except Exception as error:
            # Ours or the simulation's own: either way the seed is what has to be known.
            failures.append(f"--replay simulation:{seed}: {error!r}")
            continue
        counts += Counter(
            turns=played.choices, runs=played.runs, kills=played.kills, stopped_and_woken=played.freezes,
            virtual_seconds=int(played.virtual_seconds),
        )  # fmt: skip
    return counts, failures


def replay(seed: str) -> str | None:
    """Play one seed again; return what it broke, with all that happened, if anything."""
    played = Play(seed, listening=True)
    try:
        played.run()
    except Broken as broken:
        return f"{''.join(played.heard)}\n{broken}"
    return None
