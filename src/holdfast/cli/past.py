"""What was said in a conversation before, for whoever comes back to it."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from holdfast.cli.calls import Call
from holdfast.cli.surface import as_json, shown
from holdfast.client.protocol import Client, RunSummary
from holdfast.core.entry import Entry
from holdfast.core.ids import RunId
from holdfast.core.message import ASSISTANT, USER, Message
from holdfast.core.transcript import Transcript

_TURNS: Final = 2
"""How many turns are shown to somebody who comes back."""


async def end_of(client: Client, turns: Sequence[RunSummary]) -> list[Message]:
    """Return what was said in the last turns that are over."""
    said: list[Message] = []
    for turn in [turn for turn in turns if turn.status.terminal][-_TURNS:]:
        transcript = Transcript()
        async for event in client.events(RunId(turn.id), follow=False):
            if isinstance(event, Entry):
                large = getattr(event, "blob", None) is not None
                transcript.take(event, as_json(await client.value(event)) if large else None)
        said += transcript.messages
    return said


def lines_of_message(message: Message) -> Iterator[Text]:
    """Yield a message as it is shown again: who said it, whole; of calls, what was asked for."""
    if message.role == USER:
        yield Text("")
        yield Text.assemble(("you  ", "bold cyan"), shown(message.text))
    if message.role == ASSISTANT:
        for line in message.text.strip().splitlines():
            yield Text(shown(line))
        for call in message.calls:
            words = Call(name=call.name, arguments=call.arguments, asked_at=0).words
            yield Text(f"  · {words}", style="dim")
