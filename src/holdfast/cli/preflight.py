"""`holdfast preflight`: what new code would make of the runs that are under way."""

import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import Final

import click
from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import common
from holdfast.cli.progress import progress
from holdfast.cli.surface import Surface, as_json, shown
from holdfast.cli.target import load_app
from holdfast.cli.wording import counted, step_name
from holdfast.core.divergence import advice
from holdfast.engine.preflight import Preflight, Verdict
from holdfast.runtime import open as open_runtime
from holdfast.runtime import open_store

_SIGNS: Final = {
    Verdict.GOES_ON: ("✓", "green", "goes on"),
    Verdict.REFUSED: ("✗", "red", "would be refused"),
    Verdict.UNCLEAR: ("?", "yellow", "cannot be told"),
    Verdict.PINNED: ("=", "cyan", "pinned to another version"),
    Verdict.OUTDATED: ("«", "cyan", "has a later version"),
    Verdict.UNSERVED: ("·", "yellow", "needs code that is not here"),
    Verdict.UNREADABLE: ("!", "red", "cannot be read"),
}
_SEVERAL: Final = {"goes": "go", "has": "have", "needs": "need"}
_HARMFUL: Final = (Verdict.REFUSED, Verdict.UNCLEAR)


@click.command("preflight")
@click.argument("targets", metavar="TARGET...", nargs=-1)
@click.option("--name", metavar="NAME", help="Only runs of this function.")
@click.option("--all", "everything", is_flag=True, help="Name the runs that go on, too.")
@common()
async def preflight(
    surface: Surface, *, targets: tuple[str, ...], name: str | None, everything: bool
) -> int:  # fmt: skip
    """Tell what a program would make of the runs that are under way, before it is deployed.

    TARGET is file.py, file.py:name, module or module:name; several may be given. Every open run is replayed with that
    code up to the end of what it recorded. Nothing is performed and nothing is written; workers may go on meanwhile.

    Exits with 1 if a run would be refused, or if that cannot be told.
    """
    if not targets:
        raise click.UsageError("name the program to try, for example: holdfast preflight app.py")
    out, stdout = surface.out, sys.stdout
    counts: Counter[tuple[str, Verdict]] = Counter()
    advices: dict[str, None] = {}
    # What the program prints, at import or between its steps, is not ours.
    with redirect_stdout(sys.stderr):
        app = load_app(targets)
        store = await open_store(surface.store, create=False)
        async with open_runtime(store, app, work=False) as runtime:
            with progress(surface, "replaying") as tell:
                async for found in runtime.preflight(name=name):
                    counts[found.name, found.verdict] += 1
                    if found.verdict is Verdict.REFUSED:
                        advices[advice(found.detail)] = None
                    if surface.json:
                        click.echo(as_json(found), file=stdout)
                    elif everything or found.verdict is not Verdict.GOES_ON:
                        for line in _lines(found):
                            out.print(line, soft_wrap=True)
                    tell(f"{counted(counts.total(), 'run')} replayed")
    if not surface.json:
        _sum_up(surface, counts, advices)
    return Exit.FAILED if any(verdict in _HARMFUL for _, verdict in counts) else Exit.FINE


def _lines(found: Preflight) -> list[Text]:
    sign, style, words = _SIGNS[found.verdict]
    key = f"  {shown(found.key)}" if found.key else ""
    first = mark(sign, style) + Text.assemble(shown(found.name), f"  {found.run}", (key, "dim"), (f"  {words}", style))
    if found.recorded is not None:
        return [
            first,
            Text(f"    recorded  entry {found.seq}: {shown(found.recorded)}"),
            Text(f"    asked     {shown(found.asked or '')}"),
        ]
    if found.next is not None:
        return [first + Text.assemble(("  next ", "dim"), step_name(found.next))]
    return [first + Text(f"  {shown(found.detail)}", style="dim")]


def _sum_up(surface: Surface, counts: "Counter[tuple[str, Verdict]]", advices: Iterable[str]) -> None:
    """Print how many of each name there are of each verdict, and what can be done about those that are refused."""
    if not counts:
        surface.say(Text("no open runs", style="dim"))
        return
    width = max(len(shown(name)) for name, _ in counts)
    for name in sorted({name for name, _ in counts}):
        said = [_counted(counts[name, verdict], verdict) for verdict in Verdict if counts[name, verdict]]
        surface.out.print(Text(f"{shown(name).ljust(width)}  {', '.join(said)}"), soft_wrap=True)
    for words in advices:
        surface.say(Text(words, style="dim"))


def _counted(number: int, verdict: Verdict) -> str:
    words = _SIGNS[verdict][2]
    if number > 1:
        first, _, rest = words.partition(" ")
        words = f"{_SEVERAL.get(first, first)} {rest}"
    return f"{number:,} {words}"
