"""`python -m tests.chaos`: run the campaigns, show how far they are, and keep what they found."""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tests.chaos import (
    conversations,
    disks,
    every_verb,
    faults,
    fleet,
    flips,
    harnesses,
    loops,
    poison,
    posts,
    programs,
    races,
    rates,
    restarts,
    simulation,
    stateful,
    stateful_kills,
    summary,
    talks,
    watchers,
    zombies,
)  # fmt: skip
from tests.chaos.campaign import KILLS_POSTGRES, Campaign, commits, controls, kills, kills_postgres, power, replay
from tests.chaos.controls import CONTROLS

_CAMPAIGNS: Final[Mapping[str, Campaign]] = {
    "kills": kills,
    KILLS_POSTGRES: kills_postgres,
    "every_verb": every_verb.campaign,
    "talks": talks.campaign,
    "harnesses": harnesses.campaign,
    "loops": loops.campaign,
    "commits": commits,
    "power": power,
    "flips": flips.campaign,
    "disks": disks.campaign,
    "zombies": zombies.campaign,
    "restarts": restarts.campaign,
    "fleet": fleet.campaign,
    "posts": posts.campaign,
    "poison": poison.campaign,
    "races": races.campaign,
    "conversations": conversations.campaign,
    "rates": rates.campaign,
    "watchers": watchers.campaign,
    "simulation": simulation.campaign,
    "programs": programs.campaign,
    "faults": faults.campaign,
    "stateful": stateful.campaign,
    "stateful_kills": stateful_kills.campaign,
    "controls": controls,
}
_IN_FULL: Final = {
    "kills": 10_000, KILLS_POSTGRES: 10_000, "every_verb": 20_000, "commits": 5_000, "power": 20_000,
    "talks": 2_000, "harnesses": 1_000, "loops": 1_000, "flips": 2_000, "disks": 120, "zombies": 2_000,
    "restarts": 200, "fleet": 4_000, "posts": 20_000,
    "faults": 2 * len(faults.TRIALS), "stateful": 2 * len(stateful.TRIALS), "stateful_kills": 1_000,
    "poison": 2 * poison.HEALTHY, "races": 10_000, "conversations": 1_000, "rates": 5_000, "simulation": 20_000,
    "programs": 5_000, "watchers": 5_000,
    "controls": 20 * len(CONTROLS),
}  # fmt: skip
"""How much of each is tried if nothing else is said; less than that is shown and not kept."""
_REPLAYS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "simulation": simulation.replay,
    "programs": programs.replay,
    "talks": talks.replay,
    "loops": loops.replay,
    "stateful_kills": stateful_kills.replay,
}
"""What plays a trial again, by the campaign before the first colon; any other is one of kills or commits."""
_ON_BOTH: Final = {
    "every_verb": "how many deaths of a process that uses every verb, half of them on each store",
    "talks": "how many deaths of a worker in a conversation of ten turns, half of them on each store",
    "harnesses": "how many deaths of a process in a conversation that a harness takes the turns of, half on each store",
    "loops": "how many deaths of a loop of a user's own that has a checkpoint, half of them on each store",
    "stateful_kills": "how many deaths in a conversation that the provider keeps, half of them on each store",
    "zombies": "how many workers that are stopped and woken, half of them on each store",
    "fleet": "how many runs of a fleet that loses workers, half of them on each store",
    "posts": "how many posts that race a park, half of them on each store",
    "poison": "how many healthy runs beside some that kill their process, half of them on each store",
    "watchers": "how often 50 watchers, one of them a browser, connect again while processes die, half on each store",
    "races": "how many posts of each kind that race a park, an end or each other, on each store",
    "conversations": "how many conversations that two send to and two answer while they die, on each store",
    "programs": "how many generated programs, half of them on each store",
}
_ON_POSTGRES: Final = (KILLS_POSTGRES, "commits", "restarts", *_ON_BOTH)
_ON_SQLITE: Final = (
    "kills",
    "power",
    "flips",
    "disks",
    "controls",
    "rates",
    "simulation",
    "faults",
    "stateful",
    *_ON_BOTH,
)


def main() -> int:
    """Return 0 when no campaign found anything."""
    options = _parser().parse_args()
    if options.replay:
        broken = _replay(options.replay)
        print(broken or "nothing was broken")
        return 1 if broken else 0
    wanted = {
        "kills": options.kills or _IN_FULL["kills"],
        KILLS_POSTGRES: options.kills or _IN_FULL[KILLS_POSTGRES],
        "commits": options.cuts,
        "power": options.images,
        "flips": options.flips,
        "disks": options.disks,
        "controls": options.controls,
        "simulation": options.simulation,
        "restarts": options.restarts,
        "faults": options.faults,
        "stateful": options.stateful,
        "rates": options.rates,
        **{name: getattr(options, name) for name in _ON_BOTH},
    }
    chosen = _chosen(_CAMPAIGNS, options.only, options.store)
    if "disks" in chosen and (why := disks.cannot_mount()) is not None:
        print(f"not tried: {why}", file=sys.stderr)
        del chosen["disks"]
        if not chosen:
            return 2
    parts = _run(chosen, wanted, options.seed)
    sys.stdout.write(summary.as_json(parts).decode() if options.json else summary.as_page(parts))
    return 1 if any(part["failures"] for part in parts.values()) else 0


def _replay(text: str) -> str | None:
    """Play one trial of any campaign that has some; return what it broke, if anything."""
    campaign, _, rest = text.partition(":")
    if campaign in _REPLAYS:
        return _REPLAYS[campaign](rest)
    return (every_verb.replay if "-" in campaign else replay)(text)


def _chosen(known: Mapping[str, Campaign], only: str | None, store: str | None) -> dict[str, Campaign]:
    """Return the campaigns that were asked for; kills are those of the store that was named."""
    if only == "kills" and store == "postgres":
        only = KILLS_POSTGRES
    of_store = {None: tuple(known), "postgres": _ON_POSTGRES, "sqlite": _ON_SQLITE}[store]
    return {name: campaign for name, campaign in known.items() if only in (None, name) and name in of_store}


def _run(chosen: Mapping[str, Campaign], wanted: Mapping[str, int], seed: int) -> dict[str, summary.Part]:
    """Run the chosen campaigns; what was tried in full goes into the results at once."""
    parts: dict[str, summary.Part] = {}
    known = summary.facts(shlex.join(["python", "-m", "tests.chaos", *sys.argv[1:]]))
    known |= {"seed": seed, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    console = Console(stderr=True)
    console.print(f"seed {seed}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        for name, campaign in chosen.items():
            bar = progress.add_task(name, total=wanted[name])
            parts[name] = summary.part(known, campaign(seed, wanted[name], partial(_advance, progress, bar)))
            if wanted[name] >= _IN_FULL[name]:
                summary.keep({name: parts[name]})
            for failure in parts[name]["failures"][:3]:
                console.print(f"{name}: {failure[:2000]}", markup=False)
    return parts


def _advance(progress: Progress, bar: TaskID, steps: int) -> None:
    """Move a bar on; where nobody sees bars move, say every twentieth."""
    task = progress.tasks[bar]
    before = task.completed
    progress.advance(bar, steps)
    part = (task.total or 1) / 20
    if not progress.console.is_terminal and before // part != task.completed // part:
        progress.console.print(f"{task.description}: {task.completed:,.0f} after {task.elapsed or 0:,.0f} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill real processes, cut the power.")
    parser.add_argument("--only", choices=_CAMPAIGNS, help="one campaign instead of all")
    parser.add_argument("--store", choices=["sqlite", "postgres"], help="the campaigns of one store instead of both")
    parser.add_argument(
        "--kills",
        type=int,
        help=f"how many deaths ({_IN_FULL['kills']} on SQLite, {_IN_FULL[KILLS_POSTGRES]} on PostgreSQL)",
    )
    parser.add_argument("--cuts", type=int, default=_IN_FULL["commits"], help="how many lost replies (%(default)s)")
    parser.add_argument(
        "--images", type=int, default=_IN_FULL["power"], help="how many disks after a power loss (%(default)s)"
    )
    parser.add_argument("--flips", type=int, default=_IN_FULL["flips"], help="how many damaged stores (%(default)s)")
    parser.add_argument(
        "--disks",
        type=int,
        default=_IN_FULL["disks"],
        help="how many full and read-only disks; needs root (%(default)s)",
    )
    parser.add_argument(
        "--restarts", type=int, default=_IN_FULL["restarts"], help="how many crashes of a server (%(default)s)"
    )
    for name, meaning in _ON_BOTH.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=_IN_FULL[name], help=f"{meaning} (%(default)s)"
        )
    parser.add_argument(
        "--rates", type=int, default=_IN_FULL["rates"], help="how many runs that are resumed at once (%(default)s)"
    )
    parser.add_argument(
        "--simulation", type=int, default=_IN_FULL["simulation"], help="how many simulated interleavings (%(default)s)"
    )
    parser.add_argument(
        "--faults",
        type=int,
        default=_IN_FULL["faults"],
        help="how many runs whose provider fails, half of them on SQLite (%(default)s)",
    )
    parser.add_argument(
        "--stateful",
        type=int,
        default=_IN_FULL["stateful"],
        help="how many turns whose provider keeps what it generates, and fails (%(default)s)",
    )
    parser.add_argument(
        "--controls", type=int, default=_IN_FULL["controls"], help="how many plays of twins (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=20261115, help="where chance begins (%(default)s)")
    parser.add_argument(
        "--replay",
        metavar="TRIAL",
        help="one trial, as a failure names it: 3:p57,c12b, visit-a:57,3, simulation:1/7, programs:1/sqlite/7, ...",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
