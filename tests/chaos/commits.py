"""Lost replies on PostgreSQL: every write of a program is cut from its answer in turn, in every way, and judged."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

from holdfast.testing.killer import AtPoint, Killer, TrialFailed
from tests.chaos import judge
from tests.chaos.kills import Stage, orders
from tests.chaos.program import Report
from tests.chaos.world import read_ledger
from tests.rigs.proxy import Fault, Kind, Proxy
from tests.rigs.server import Server, in_schema

VERBS: Final[Mapping[str, str]] = {
    "create": r"\.hf_create\(",
    "commit": r"\.hf_commit\(",
    "claim": r"SET owner = w\.number",
    "post": r"\.hf_post\(",
    "release": r"SET owner = NULL, stalls",
    "chunk": r"INSERT INTO \S+hf_chunks",
    "transact": r"hf_awaited",
    "void": r"\.hf_void\(",
    "register": r"INSERT INTO \S+hf_workers",
}
"""What each verb that writes has in its text."""
SIGNED: Final = AtPoint(1, named="sign performed")
"""The death after which a person has to say what happened: the only one who posts."""
_OF_RECOVERY: Final = ("claim", "post", "void")
_LANDINGS: Final = ("0", "0.005", "0.015", "0.03", "0.1", "commit")
"""Around the moments at which a driver that lost its line looks again and tries again."""
_RECOVERIES: Final = ("0", "register", "void", "create", "claim", "commit")
"""The moments at which a successor looks, takes over, claims and goes on."""
_SELDOM: Final = 3
_LANDS_AT_LAST_SECONDS: Final = 1.0
MORTAL: Final = (Kind.DURING, Kind.HANGING, Kind.LATE)
"""How something may land after the death of the process that sent it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The `nth` use of a verb by so many runs, and how its reply is lost; written `2:commit:late:14@0.1+!`.

    A late one `lands` after so many seconds, or just before the next use of a verb. With `dies` (`+`) the program is
    killed at that moment, so that its successor meets what lands. With `signed` (`!`) it has died before, and a
    person's post is in the cut part.
    """

    runs: int
    verb: str
    kind: Kind
    nth: int
    lands: str = "0"
    signed: bool = False
    dies: bool = False

    @classmethod
    def of_seed(cls, seed: str) -> "Cut":
        """Return the cut that a seed stands for; one that comes to nothing is an undisturbed program."""
        chance = random.Random(seed)
        verb = chance.choice(("commit", "commit", "commit", *VERBS))
        runs = chance.choice((1, 2, 3, 4))
        nth = chance.randint(1, 25 * runs if verb == "commit" else 2 * runs)
        kind, signed = chance.choice(tuple(Kind)), verb == "post" or chance.random() < 0.2
        dies = kind in MORTAL and chance.random() < 0.5
        return cls(runs, verb, kind, nth, chance.choice(_RECOVERIES if dies else _LANDINGS), signed, dies)

    @classmethod
    def parse(cls, text: str) -> "Cut":
        """Return the cut of this text.

        Raises:
            ValueError: it is not one.
        """
        found = re.fullmatch(r"(\d+):(\w+):(\w+):(\d+)(?:@([\w.]+))?(\+?)(!?)", text)
        if found is None or found[2] not in VERBS or found[3].upper() not in Kind.__members__:
            raise ValueError(f"{text!r} is no cut: write 2:commit:swallowed:14")
        kind, lands = Kind[found[3].upper()], found[5] or "0"
        return cls(int(found[1]), found[2], kind, int(found[4]), lands, bool(found[7]), bool(found[6]))

    def __str__(self) -> str:
        late = f"@{self.lands}" if self.kind in (Kind.LATE, Kind.HANGING) else ""
        marks = f"{'+' if self.dies else ''}{'!' if self.signed else ''}"
        return f"{self.runs}:{self.verb}:{self.kind.name.lower()}:{self.nth}{late}{marks}"

    @property
    def fault(self) -> Fault:
        """The fault to set."""
        before = VERBS.get(self.lands)
        seconds = float(self.lands) if before is None else _LANDS_AT_LAST_SECONDS
        return Fault(self.kind, self.nth, VERBS[self.verb], seconds, before, self.dies)


@dataclass(frozen=True, slots=True)
class Survived:
    """A program seen to its end over a line that was cut: whether it came to the cut, and what it left."""

    cut: bool
    report: Report


class Line:
    """A stage on PostgreSQL whose program reaches its store over a line that can be cut."""

    def __init__(self, killer: Killer, folder: Path, server: Server, proxy: Proxy, *, twin: str = "") -> None:
        address = in_schema(server.database(f"line_{folder.name}"), "hf")
        self._proxy = proxy
        self._stage = Stage(killer, folder, twin=twin, address=proxy.before(address))
        # What makes the store is none of the program's writes.
        self.count(orders(1))

    def count(self, names: Sequence[str], *, signed: bool = False) -> dict[str, int]:
        """Return how often an undisturbed program uses each verb."""
        self._begin(names, signed=signed)
        self._proxy.strike(None)
        self._stage.play(names).result()
        texts = list(self._proxy.commits)
        return {verb: sum(re.search(p, text) is not None for text in texts) for verb, p in VERBS.items()}

    def trial(self, cut: Cut) -> Survived:
        """Play a fresh program over a line that is cut so, and judge it.

        Raises:
            Broken: a promise was broken.
            TrialFailed: the program did not end well.
        """
        names = orders(cut.runs)
        deaths = self._begin(names, signed=cut.signed)
        self._proxy.strike(cut.fault)
        try:
            outcome = self._stage.play(names)
            if outcome.killed and cut.dies:
                deaths += 1
                outcome = self._stage.play(names)
            report: Report = outcome.result()
            struck = bool(self._proxy.struck)
        finally:
            self._proxy.strike(None)
        if cut.dies and cut.verb == "register":
            # Who became known after his death is seen to be dead by the next look, for which nobody stayed.
            report = replace(report, left=())
        judge.check(report, read_ledger(self._stage.ledger), deaths=deaths)
        return Survived(struck, report)

    def _begin(self, names: Sequence[str], *, signed: bool) -> int:
        """Make a fresh store, and let a program die in it if a person is wanted; return how many deaths that were."""
        self._proxy.strike(None)
        self._stage.clear()
        if not signed:
            return 0
        outcome = self._stage.play(names, SIGNED)
        if not outcome.killed:
            raise TrialFailed(f"the program did not die when it had signed: {outcome.error}")
        return 1


def every_cut(line: Line, kinds: Sequence[Kind], *, dies: bool = False) -> Iterator[Cut]:
    """Yield each use of each verb by one run, cut in each of these ways; what is seldom used lands at every moment."""
    moments = _RECOVERIES if dies else _LANDINGS
    for signed in (False, True):
        for verb, count in line.count(orders(1), signed=signed).items():
            if signed and verb not in _OF_RECOVERY:
                continue
            for nth, kind in product(range(1, count + 1), kinds):
                base = Cut(1, verb, kind, nth, moments[nth % len(moments)], signed, dies)
                if kind in (Kind.LATE, Kind.HANGING) and count <= _SELDOM:
                    yield from (replace(base, lands=moment) for moment in moments)
                else:
                    yield base
