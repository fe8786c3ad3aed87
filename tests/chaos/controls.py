"""Negative controls: a check that cannot fail proves nothing, so each must catch the twin that breaks its promise."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.testing.disk import Metadata
from holdfast.testing.killer import AtPoint, Killer, TrialFailed
from tests.chaos import scenes
from tests.chaos.judge import ONCE, Broken
from tests.chaos.kills import Stage, orders
from tests.chaos.losses import Loss
from tests.chaos.parlour import Parlour
from tests.chaos.theatre import Theatre

Play = Callable[[Killer, Path, str, random.Random], None]
"""Plays a trial with a twin, or with none, and raises if a promise is broken."""


@dataclass(frozen=True, slots=True)
class Control:
    """A twin, the trial that must catch it, and what the catch must say; `sound` is played for comparison."""

    twin: str
    play: Play
    says: str
    sound: str = ""

    def caught(self, killer: Killer, folder: Path, seed: int) -> str | None:
        """Return how the twin was caught; None if it went by."""
        return self._broken(killer, folder, self.twin, seed)

    def accused(self, killer: Killer, folder: Path, seed: int) -> str | None:
        """Return what Holdfast itself is accused of by the same trial; None is as it should be."""
        return self._broken(killer, folder, self.sound, seed)

    def _broken(self, killer: Killer, folder: Path, twin: str, seed: int) -> str | None:
        try:
            self.play(killer, folder, twin, random.Random(seed))
        except (Broken, TrialFailed) as error:
            return str(error)
        return None


def _killed(*aims: str, most_runs: int = 3) -> Play:
    """Return trials that die at each of these points, in one of several runs."""

    def play(killer: Killer, folder: Path, twin: str, chance: random.Random) -> None:
        for aim in chance.sample(aims, len(aims)):
            count = chance.randint(1, most_runs)
            death = AtPoint(chance.randint(1, count), named=aim)
            Stage(killer, folder, twin=twin).trial(orders(count), [death])

    return play


def _acted(act: str, *aims: str) -> Play:
    """Return trials in which an act dies at each of these points; `after#3` is the third of that name."""

    def play(killer: Killer, folder: Path, twin: str, chance: random.Random) -> None:
        cast = [f"{act}-{chance.choice('abc')}"]
        _, book = Theatre(killer, folder).unbroken(cast)
        for aim in chance.sample(aims, len(aims)):
            name, _, nth = aim.partition("#")
            Theatre(killer, folder, twin=twin).trial(cast, [AtPoint(int(nth or 1), named=name)], book)

    return play


def _talked(turn: int, aim: str) -> Play:
    """Return trials in which the worker of a conversation of one turn dies at this point."""

    def play(killer: Killer, folder: Path, twin: str, chance: random.Random) -> None:
        with Parlour(killer, folder) as sound:
            _, wanted = sound.unbroken([turn])
        with Parlour(killer, folder, twin=twin) as parlour:
            parlour.trial([AtPoint(1, named=aim)], wanted, turns=[turn], seed=str(chance.random()))

    return play


_DEPLOYS: Final = (
    ("hold sent", "more"),
    ("hold performed", "more"),
    ("tell begins", "more"),
    ("tell begins", "otherwise"),
    ("tell ends", "otherwise"),
)
"""Where the first release dies, and the release that comes after; what it asks for differs from what was recorded."""


def _deployed(killer: Killer, folder: Path, twin: str, chance: random.Random) -> None:
    point, code = chance.choice(_DEPLOYS)
    Stage(killer, folder, twin=twin).deploy(orders(1), AtPoint(1, named=point), code)


def _without_power(killer: Killer, folder: Path, twin: str, chance: random.Random) -> None:
    loss = Loss(killer, folder, orders(chance.randint(1, 2)), twin=twin)
    for image in loss.images(seed=chance.randrange(2**32), limit=10, metadata=Metadata.ORDERED):
        loss.check(image)


def _staged(scene: Callable[[str, str, str], Any]) -> Play:
    def play(killer: Killer, folder: Path, twin: str, chance: random.Random) -> None:
        stage = Stage(killer, folder)
        stage.clear()
        killer.run(scene, str(stage.store), str(stage.ledger), twin).result()

    return play


_INSIDE: Final = ("sent", "performed")

CONTROLS: Final[Sequence[Control]] = (
    Control("sync_normal", _without_power, "lost|only later|belonged to run|damaged at a commit"),
    Control("no_fence", _staged(scenes.paused_worker), "a worker without a lease wrote"),
    Control("no_intent", _killed(*(f"{effect} {when}" for effect in ONCE for when in _INSIDE)), "2 times"),
    Control("no_patience", _killed("pay sent"), "pay happened 2 times"),
    # Alone, because a neighbour's next commit would make up for the one that was promised too early.
    Control(
        "reply_first",
        _killed("tag begins", "insist begins", "refuse begins", most_runs=1),
        "lost|only later|was stuck",
    ),
    Control("key_per_attempt", _killed("hold sent", "hold performed"), "hold was sent with"),
    Control("order_alone", _deployed, "it is completed|the new code acted"),
    Control("reads_first", _staged(scenes.landing_entry), "missed one that had landed"),
    Control("numbered_outside", _staged(scenes.crossing_posts), "posts were accepted"),
    Control(
        "second_sqlite",
        _killed("insist begins", "pay sent", "paint ends"),
        "lost|only later|disk I/O error|ended with -",
        sound="visited",
    ),
    Control("stamped_early", _staged(scenes.crossing_chunk), "without the chunk that was sent"),
    Control("no_intent", _acted("market", "pay sent"), "pay happened 2 times"),
    Control("key_per_attempt", _acted("family", "hold sent"), "hold was sent with"),
    Control("takes_first", _acted("visit", "taken"), "was given what it waits for"),
    Control("takes_first", _acted("market", "taken"), "nothing will ever move market"),
    Control("spawns_first", _acted("market", "spawned"), "that nobody spawned"),
    Control("slides", _acted("visit", "after#3", "after#4", "after#5"), "has slid"),
    Control("expires_early", _acted("visit", "dawdle begins"), "is not that of an unbroken run"),
    Control("performs_thrice", _acted("family", "hold sent"), "hold was performed"),
    Control("chance_anew", _acted("family", "hold sent"), "is not that of an unbroken run"),
    Control("gives_up", _acted("stay", "came begins"), "it is quarantined"),
    Control("calls_again", _talked(4, "pay ends"), "pay 4b happened 2 times"),
    Control("answers_late", _talked(2, "pay begins"), "was asked what it never would have been"),
)
