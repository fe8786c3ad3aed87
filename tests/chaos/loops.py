"""Loops of users' own whose process dies at every point of them, then by chance, on both databases."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from holdfast.testing.killer import AtPoint, Killer, Outcome, TrialFailed
from tests.chaos import contender, looper
from tests.chaos.campaign import Result, Shared, Tick, in_two
from tests.chaos.judge import Broken
from tests.chaos.kills import SEAM, scratch
from tests.chaos.looper import Line, Look
from tests.rigs.server import Server, in_schema, plain

_PRELOAD: Final = ("holdfast", "holdfast.checkpoint", "holdfast.store.sqlite", "tests.chaos.looper")
Unbroken = tuple[int, list[Line], Look]
"""How many points an undisturbed loop comes to, what the world saw of it, and what is stored."""


def new_killer() -> Killer:
    """Return a server for these trials."""
    return Killer(preload=_PRELOAD, seam=SEAM, timeout_seconds=60.0)


class Loops:
    """A place for one trial after another: a folder, and the store in it unless it has an address."""

    def __init__(self, killer: Killer, folder: Path, *, address: str | None = None, twin: str = "") -> None:
        self._killer, self._folder, self._twin = killer, folder, twin
        self._address, self._file = address or f"sqlite:///{folder / 'store.db'}", address is None

    def clear(self) -> None:
        """Forget the trial before."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if not self._file:
            with psycopg.connect(plain(self._address), autocommit=True) as connection:
                connection.execute("DROP SCHEMA IF EXISTS hf CASCADE")
                connection.execute("CREATE SCHEMA hf")

    def play(self, die: AtPoint | None = None) -> Outcome:
        """Run the loop once, to its end or its death."""
        return self._killer.run(looper.loop, self._address, str(self._folder), self._twin, die=die)

    def unbroken(self) -> Unbroken:
        """Return how many points an undisturbed loop comes to, what the world saw of it, and what is stored."""
        self.clear()
        outcome = self.play()
        outcome.result()
        return outcome.points, looper.lines(str(self._folder)), self._look()

    def trial(self, deaths: Sequence[int], wanted: Unbroken) -> int:
        """Let the loop die at these points, life after life, and see it to its end; return how often it died.

        Raises:
            Broken: a promise was.
            TrialFailed: it did not come to an end.
        """
        self.clear()
        died = 0
        for nth in deaths:
            outcome = self.play(AtPoint(nth))
            if not outcome.killed:
                outcome.result()
                break
            died += 1
        else:
            self.play().result()
        seen = looper.lines(str(self._folder))
        broken = [*_of_world(seen, wanted[1]), *_of_store(self._look(), wanted[2], seen)]
        if broken:
            raise Broken("\n".join(broken))
        return died

    def _look(self) -> Look:
        look: Look = self._killer.run(looper.look, self._address).result()
        return look


def _of_world(seen: Sequence[Line], wanted: Sequence[Line]) -> Iterator[str]:
    """Every life begins with what was acknowledged last, or with the save behind it; every effect happens once."""
    states: dict[Any, Any] = {None: None}
    states |= {tuple(line["at"]): line["messages"] for line in wanted if line["what"] == "saved"}
    order = list(states)
    least = 0
    for line in seen:
        if line["what"] == "saved":
            least = max(least, order.index(tuple(line["at"])))
        if line["what"] == "began":
            at = tuple(line["at"]) if line["messages"] is not None else None
            if at not in states or line["messages"] != states[at]:
                yield f"life {line['attempt']} found what was never saved at {at}: {line['messages']}"
            elif not least <= order.index(at) <= least + 1:
                yield f"life {line['attempt']} found {at}, and {order[least]} had been acknowledged: it is lost"
            else:
                least = order.index(at)
    attempts = [line["attempt"] for line in seen if line["what"] == "began"]
    if attempts != sorted(set(attempts)):
        yield f"the lives were counted {attempts}"
    done = Counter(line["turn"] for line in seen if line["what"] == "did")
    for turn in range(looper.TURNS):
        if done[turn] != 1:
            yield f"the effect of turn {turn} happened {done[turn]} times"
    if [line["what"] for line in seen].count("ended") != 1:
        yield "it did not end once"


def _of_store(look: Look, wanted: Look, seen: Sequence[Line]) -> Iterator[str]:
    """One life of one checkpoint, completed, sound, with nobody left behind, and no message stored again and again."""
    if look.status != "completed":
        yield f"it is {look.status}"
    yield from (f"verify found {finding}" for finding in look.findings)
    yield from (f"worker {worker} is left" for worker in look.left)
    began = [line["attempt"] for line in seen if line["what"] == "began"]
    if not set(began) <= set(look.opened):
        yield f"lives {began} were begun, and {list(look.opened)} are recorded"
    if look.saved_bytes > wanted.saved_bytes:
        yield f"{look.saved_bytes:,} bytes were saved instead of {wanted.saved_bytes:,}"


def linear(look: Look, wanted: Sequence[Line]) -> str | None:
    """Say what is wrong if an unbroken loop stored more than its messages, each once, and what was edited of them."""
    states: list[list[Any]] = [line["messages"] for line in wanted if line["what"] == "saved"]
    known: list[str] = []
    for state in states:
        known += [text for text in map(repr, state) if text not in known]
    most = sum(map(len, known)) + 64 * len(states)
    return f"{look.saved_bytes:,} bytes were saved of {most:,} that changed" if look.saved_bytes > most else None


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Let loops die until `wanted` deaths were died, half of them on each database."""
    shared, started = Shared(tick), time.monotonic()
    _kill(shared, f"{seed}/sqlite", wanted - wanted // 2, None)
    with scratch() as folder:
        _contend(shared, f"{seed}/sqlite", folder, f"sqlite:///{folder / 'store.db'}", rounds=wanted // 20)
    with Server() as server, scratch() as folder:
        _kill(shared, f"{seed}/postgresql", wanted // 2, server)
        address = in_schema(server.database("contenders"), "hf")
        with psycopg.connect(plain(address), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS hf")
        _contend(shared, f"{seed}/postgresql", folder, address, rounds=wanted // 20)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def deaths_of(number: int, points: int, seed: str) -> tuple[int, ...]:
    """Return the deaths of a trial: each point in its turn, then several by chance."""
    if number <= points:
        return (number,)
    chance = random.Random(f"{seed}/{number}")
    return tuple(chance.randint(1, points) for _ in range(chance.choice((2, 2, 3))))


def _kill(shared: Shared, seed: str, wanted: int, server: Server | None) -> None:
    of_store = f"on_{seed.rpartition('/')[2]}"
    first = shared.draw()

    def work(killer: Killer, folder: Path) -> None:
        address = None if server is None else in_schema(server.database(f"loops_{folder.name}"), "hf")
        loops = Loops(killer, folder, address=address)
        unbroken = loops.unbroken()
        shared.most(points=unbroken[0])
        while shared.count(of_store) < wanted and not shared.hopeless:
            deaths = deaths_of(shared.draw() - first, unbroken[0], seed)
            try:
                died = loops.trial(deaths, unbroken)
            except (Broken, TrialFailed) as error:
                named = ",".join(map(str, deaths))
                shared.done(0, f"{of_store}, --replay loops:{named}: {error}", trials=1, broken=1)
            else:
                shared.done(died, None, trials=1, kills=died, during_recovery=max(0, died - 1))
                shared.add({of_store: died})

    in_two(work, new_killer)


def _contend(shared: Shared, seed: str, folder: Path, address: str, *, rounds: int) -> None:
    """Let four processes, and four more when some have died, want one checkpoint."""
    for number in range(2):
        try:
            came = contender.play(address, folder / str(number), seed=f"{seed}/{number}", processes=4, rounds=rounds)
        except AssertionError as error:
            shared.done(0, f"{seed}: of those that want one checkpoint: {error}", broken=1)
        else:
            shared.add({"had it": came["said"], "were refused": came["refused"]})


def replay(text: str) -> str | None:
    """Play one trial on SQLite again and return what it broke, if anything."""
    with scratch() as folder, new_killer() as killer:
        loops = Loops(killer, folder / "replay")
        try:
            loops.trial(tuple(map(int, text.split(","))), loops.unbroken())
        except (Broken, TrialFailed) as error:
            return str(error)
    return None
