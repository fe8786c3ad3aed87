"""A reader who loses the line again and again, and checks that what he sees is one story without a gap or a repeat."""

from contextlib import aclosing
from random import Random
from typing import Any, Final

from holdfast import events as e
from holdfast.core.ids import RunId
from holdfast.core.transcript import read_message
from holdfast.runtime import Runtime
from holdfast.stream.event import Chunk, PreviewReset
from tests.chaos.program import digest

_CUT: Final = 0.15
"""How likely the line is lost after an event."""
Stream = tuple[str, int, int]
"""A step, the fence of whoever performs it, and the attempt."""


class Onlooker:
    """Follows one run from its beginning to its end by the ids of what it saw; `broken` is what was wrong with that."""

    def __init__(self, runtime: Runtime, run: RunId, chance: Random) -> None:
        self._runtime, self._chance = runtime, chance
        self.run = run
        self.seen: list[str] = []
        """The digest of every entry, in order."""
        self.broken: list[str] = []
        self.connections = 0
        self.previews = 0
        """How many pieces were shown before their entry."""
        self._after: str | None = None
        self._fence = 0
        self._open: dict[Stream, list[Any]] = {}
        self._over = False

    async def follow(self, told: Any) -> None:
        """See the run to its end; `told` is called with each entry."""
        while not self._over:
            self.connections += 1
            events: Any = self._runtime.client.events(self.run, after=self._after)
            async with aclosing(events):
                async for event in events:
                    self._take(event)
                    if not isinstance(event, Chunk | PreviewReset):
                        await told(self.run, event)
                    if self._chance.random() < _CUT:
                        break

    def _take(self, event: Any) -> None:
        if isinstance(event, PreviewReset):
            self._open.clear()
            return
        self._after = event.id
        if isinstance(event, Chunk):
            self._show(event)
            return
        self.seen.append(digest(event))
        if event.seq != len(self.seen):
            self.broken.append(f"entry {event.seq} came as number {len(self.seen)}")
        if isinstance(event, e.RunResumed):
            self._open.clear()
        elif getattr(event, "step", None) is not None:
            self._close(event)
        if isinstance(event, e.RunFinished):
            self._over = True
            self.broken += [f"the preview of {step} never came to anything" for step, _, _ in self._open]

    def _show(self, chunk: Chunk) -> None:
        self.previews += 1
        if chunk.fence < self._fence:
            self.broken.append(f"a preview of fence {chunk.fence} came after one of {self._fence}")
        self._fence = chunk.fence
        shown = self._open.setdefault((chunk.step, chunk.fence, chunk.attempt), [])
        if chunk.offset != len(shown):
            self.broken.append(f"piece {chunk.offset} of {chunk.step} came as piece {len(shown)}")
        shown.append(chunk.value)

    def _close(self, event: Any) -> None:
        """Hold what was shown of a step against the entry that takes its place."""
        for stream in [stream for stream in self._open if stream[0] == event.step]:
            shown = self._open.pop(stream)
            if isinstance(event, e.MessageAdded) and not _begins_with(event, shown):
                self.broken.append(f"{event.step} says {event.value}, and was shown as {shown}")


def _begins_with(event: e.MessageAdded, shown: list[Any]) -> bool:
    """Say whether a message begins with the pieces that were shown of it."""
    message = read_message(event)
    text = "".join(piece["text"] for piece in shown if piece["kind"] == "text")
    arguments: dict[int, str] = {}
    for piece in shown:
        if piece["kind"] == "call":
            at = piece.get("index", 0)
            arguments[at] = arguments.get(at, "") + piece.get("arguments", "")
    return message.text.startswith(text) and all(
        at < len(message.calls) and message.calls[at].arguments.startswith(begun) for at, begun in arguments.items()
    )
