"""`python -m tests.chaos`: run the campaigns, show how far they are, and keep what they found."""

import argparse
import shlex
import sys
from collections.abc import Mapping
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

from tests.chaos import disks, flips, summary
from tests.chaos.campaign import Campaign, controls, kills, power, replay
from tests.chaos.controls import CONTROLS

_CAMPAIGNS: Final[Mapping[str, Campaign]] = {
    "kills": kills,
    "power": power,
    "flips": flips.campaign,
    "disks": disks.campaign,
    "controls": controls,
}
_IN_FULL: Final = {"kills": 10_000, "power": 20_000, "flips": 2_000, "disks": 120, "controls": 20 * len(CONTROLS)}
"""How much of each is tried if nothing else is said; less than that is shown and not kept."""


def main() -> int:
    """Return 0 when no campaign found anything."""
    options = _parser().parse_args()
    if options.replay:
        broken = replay(options.replay)
        print(broken or "nothing was broken")
        return 1 if broken else 0
    wanted = {
        "kills": options.kills,
        "power": options.images,
        "flips": options.flips,
        "disks": options.disks,
        "controls": options.controls,
    }
    chosen = {name: campaign for name, campaign in _CAMPAIGNS.items() if options.only in (None, name)}
    if "disks" in chosen and (why := disks.cannot_mount()) is not None:
        print(f"not tried: {why}", file=sys.stderr)
        del chosen["disks"]
        if not chosen:
            return 2
    parts = _run(chosen, wanted, options.seed)
    sys.stdout.write(summary.as_json(parts).decode() if options.json else summary.as_page(parts))
    return 1 if any(part["failures"] for part in parts.values()) else 0


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
    parser.add_argument("--kills", type=int, default=_IN_FULL["kills"], help="how many deaths (%(default)s)")
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
        "--controls", type=int, default=_IN_FULL["controls"], help="how many plays of twins (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=20261115, help="where chance begins (%(default)s)")
    parser.add_argument("--replay", metavar="TRIAL", help="one trial of kills, as a failure names it: 3:p57,c12b")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
