"""The same figures three times: a table to look at, JSON to compare with, a page to keep."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure, shown
from benchmarks.machine import Machine
from benchmarks.subject import RESTLESS, Reading


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run of the benchmark found."""

    date: date
    commit: str
    command: str
    machine: Machine
    appends: Sequence[float]
    commits: Sequence[float]
    versions: dict[str, str]
    figures: Sequence[Figure]
    readings: Sequence[Reading]
    warnings: Sequence[str]

    def as_json(self) -> str:
        figures = [asdict(one) | {"target": str(one.target or ""), "verdict": one.verdict} for one in self.figures]
        whole = asdict(self) | {"date": self.date.isoformat(), "figures": figures}
        return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"

    def write(self, directory: Path) -> None:
        """Write the JSON under today's date and the page over the last one."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"bench-{self.date.isoformat()}.json").write_text(self.as_json())
        (directory / "bench.md").write_text("\n".join(self._page()) + "\n")

    def print(self, console: Console) -> None:
        """Draw both tables."""
        for title, header, rows in self._tables():
            table = Table(title=title, title_justify="left", header_style="bold")
            for number, column in enumerate(header):
                table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
            for row in rows:
                table.add_row(*row, style="red" if "FAIL" in row else None)
            console.print(table)
        for line in self._facts():
            console.print(line, highlight=False)

    def _tables(self) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        for unit, where in (("A", ""), ("A2", " beside PostgreSQL")):
            if readings := [one for one in self.readings if one.unit == unit]:
                yield f"Steps{where}, median of the rounds", _step_header(unit), list(_step_rows(readings))
        yield "Figures and targets", ("figure", "value", "target", "verdict", "note"), list(_rows(self.figures))

    def _facts(self) -> Iterator[str]:
        yield f"Commit {self.commit}, {self.date.isoformat()}, by `{self.command}`."
        machine = self.machine
        yield (
            f"{machine.cpu}, {machine.cores} cores, {machine.kernel}, {machine.python}, {machine.filesystem}; "
            f"load average {machine.load_average} before the run."
        )
        if self.appends:
            low, middle, high = min(self.appends), median(self.appends), max(self.appends)
            yield f"A, 500-byte append and fdatasync: {middle:,.0f} a second, {low:,.0f} to {high:,.0f} in this run."
        if self.commits:
            low, middle, high = min(self.commits), median(self.commits), max(self.commits)
            yield f"A2, one row of 1 kB and commit: {middle:,.0f} a second, {low:,.0f} to {high:,.0f} in this run."
        if restless := sum(one.unrest > RESTLESS for one in self.readings):
            yield f"The unit moved by more than half during {restless} of {len(self.readings)} readings."
        if self.versions:
            yield "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items())) + "."
        for warning in self.warnings:
            yield f"Not measured: {warning}."

    def _page(self) -> Iterator[str]:
        yield "# Benchmarks\n"
        yield "Ratios taken within one run on one machine; absolute times of a shared machine mean little."
        yield "How each figure is taken is told in `benchmarks/README.md`.\n"
        yield from (f"- {fact}" for fact in self._facts())
        for title, header, rows in self._tables():
            yield f"\n## {title}\n"
            yield "| " + " | ".join(header) + " |"
            yield "|---|" + "---:|" * (len(header) - 1)
            yield from ("| " + " | ".join(row) + " |" for row in rows)
        yield "\n## What each subject ran at\n"
        yield from (f"- {name}: {settings}" for name, settings in _settings(self.readings))


def _step_header(unit: str) -> tuple[str, ...]:
    return "subject", "runs at once", "result bytes", "steps/s", f"in {unit}", "cpu µs a step", "stored bytes a step"


def _step_rows(readings: Iterable[Reading]) -> Iterator[tuple[str, ...]]:
    cells: dict[tuple[int, int, str], list[Reading]] = {}
    for one in readings:
        if one.mode == "steps":
            cells.setdefault((one.payload_bytes, one.runs, one.subject), []).append(one)
    for (payload_bytes, runs, subject), takes in sorted(cells.items(), key=lambda cell: (-cell[0][0], cell[0][1])):
        yield (
            subject,
            f"{runs:,}",
            f"{payload_bytes:,}",
            f"{median(one.rate for one in takes):,.0f}",
            f"{median(one.in_appends for one in takes):.3f}",
            f"{median(one.cpu_microseconds for one in takes):,.0f}",
            f"{median(one.sample.bytes / one.sample.stored for one in takes):,.0f}",
        )


def _rows(figures: Iterable[Figure]) -> Iterator[tuple[str, ...]]:
    for one in figures:
        value = "" if one.value is None else shown(one.value)
        yield one.name, f"{value} {one.unit}".strip(), str(one.target or ""), one.verdict, one.note


def _settings(readings: Iterable[Reading]) -> Iterator[tuple[str, str]]:
    seen = {one.subject: one.sample.settings for one in readings}
    for subject, settings in seen.items():
        yield subject, ", ".join(f"{name} {value}" for name, value in settings.items())
