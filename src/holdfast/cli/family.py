"""The children of a run, drawn, and what they need."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from holdfast.cli.questions import changing
from holdfast.cli.saying import raising, waiting
from holdfast.cli.surface import Surface, shown
from holdfast.cli.table import COLOURS
from holdfast.client.family import Kin
from holdfast.client.protocol import Client
from holdfast.core.ids import RunId
from holdfast.core.status import Status


def lines_of(children: Sequence[Kin], more: int, before: str = "") -> Iterator[Text]:
    """Yield the tree, a line for each."""
    for place, child in enumerate(children, 1):
        last = place == len(children) and not more
        status = str(child.status) if child.status is not None else "unknown"
        style = COLOURS[child.status] if child.status is not None else "red"
        rests = child.status is None or not child.status.terminal or child.status is Status.FAILED
        why = f"  {waiting(child.reason)}" if rests and child.reason else ""
        corner = f"{before}{'└' if last else '├'} "
        yield Text.assemble((corner, "dim"), shown(child.name), f"  {child.id}  ", (status, style), (why, "dim"))
        yield from lines_of(child.children, 0, f"{before}{'  ' if last else '│ '}")
    if more:
        yield Text(f"└ and {more:,} more", style="dim")


async def needs_of(surface: Surface, client: Client, children: Sequence[Kin]) -> Sequence[str]:
    """Return the commands by which descendants go on that wait for a person's answer or have used up their budget."""
    ways: list[str] = []
    for child in children:
        if child.status is Status.EXHAUSTED:
            ways.append(raising(surface, child.id, child.reason))
        elif child.status is Status.WAITING and child.reason.partition(":")[0] == "ask":
            for question in await client.questions(RunId(child.id)):
                ways += [surface.command("answer", question.id), *changing(surface, question)]
        ways += await needs_of(surface, client, child.children)
    return ways
