"""`python -m tests.chaos`: run the campaigns, show how far they are, and keep what they found."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
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

from tests.chaos import summary
from tests.chaos.campaign import Campaign, Result, campaigns, replay
from tests.chaos.controls import CONTROLS

_KILLS: Final = 10_000
_IMAGES: Final = 20_000
_CONTROLS: Final = 20
_FLIPS: Final = 2_000


def main() -> int:
    """Return 0 when no campaign found anything."""
    known_campaigns = campaigns()
    options = _parser(list(known_campaigns)).parse_args()
    if options.replay:
        broken = replay(options.replay)
        print(broken or "nothing was broken")
        return 1 if broken else 0
    wanted = {
        "kills": options.kills,
        "power": options.images,
        "flips": options.flips,
        "controls": options.controls * len(CONTROLS),
    }
    parts = {name: part for name, part in known_campaigns.items() if options.only in (None, name)}
    known = summary.facts(shlex.join(["python", "-m", "tests.chaos", *sys.argv[1:]]))
    known |= {"seed": options.seed, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    results = _run(parts, wanted, options.seed)
    if options.only is None and options.kills >= _KILLS and options.images >= _IMAGES:
        summary.RESULTS.mkdir(exist_ok=True)
        (summary.RESULTS / "chaos.json").write_bytes(summary.as_json(known, results))
        (summary.RESULTS / "chaos.md").write_text(summary.as_page(known, results), "utf-8")
    sys.stdout.write(summary.as_json(known, results).decode() if options.json else summary.as_page(known, results))
    return 1 if any(result.failures for result in results.values()) else 0


def _run(parts: Mapping[str, Campaign], wanted: Mapping[str, int], seed: int) -> dict[str, Result]:
    results: dict[str, Result] = {}
    console = Console(stderr=True)
    console.print(f"seed {seed}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        for name, part in parts.items():
            bar = progress.add_task(name, total=wanted[name])
            results[name] = part(seed, wanted[name], partial(_advance, progress, bar))
            for failure in results[name].failures[:3]:
                console.print(f"{name}: {failure[:2000]}", markup=False)
    return results


def _advance(progress: Progress, bar: TaskID, steps: int) -> None:
    """Move a bar on; where nobody sees bars move, say every twentieth."""
    task = progress.tasks[bar]
    before = task.completed
    progress.advance(bar, steps)
    part = (task.total or 1) / 20
    if not progress.console.is_terminal and before // part != task.completed // part:
        progress.console.print(f"{task.description}: {task.completed:,.0f} after {task.elapsed or 0:,.0f} s")


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill real processes, cut the power.")
    parser.add_argument("--only", choices=names, help="one campaign instead of all")
    parser.add_argument("--kills", type=int, default=_KILLS, help="how many deaths (%(default)s)")
    parser.add_argument("--images", type=int, default=_IMAGES, help="how many disks after a power loss (%(default)s)")
    if "flips" in names:
        parser.add_argument("--flips", type=int, default=_FLIPS, help="how many damaged stores (%(default)s)")
    parser.set_defaults(flips=_FLIPS)
    parser.add_argument("--controls", type=int, default=_CONTROLS, help="how often each twin is played (%(default)s)")
    parser.add_argument("--seed", type=int, default=20261115, help="where chance begins (%(default)s)")
    parser.add_argument("--replay", metavar="TRIAL", help="one trial of kills, as a failure names it: 3:p57,c12b")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
