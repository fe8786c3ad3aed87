"""A run as it is watched: words as they come, a line for each call and step, and a sign of life between them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from holdfast import events as ev
from holdfast.cli.calls import Call, Calls
from holdfast.cli.gist import cut, message_of
from holdfast.cli.lines import failure, line_of, mark, resolution
from holdfast.cli.saying import decision
from holdfast.cli.surface import Surface, brief, shown
from holdfast.cli.wording import duration
from holdfast.cli.writer import Writer
from holdfast.client.protocol import Client
from holdfast.core.message import ASSISTANT, TOOL, Message, ToolResult
from holdfast.stream.event import Event

_INDENT: Final = "  "
_IDLE: Final = "working"
_PIECES: Final = {"reasoning": "thinking", "call": "choosing a tool"}
"""What is said while a model sends what is no text."""
_MOST_SAID: Final = 120


class Speech:
    """Tells the events of one run: words of the model to `out`, if that is somebody's screen, all else to stderr.

    A preview that came to nothing is ended where it stands; what counts is the message, which completes or replaces it.
    """

    def __init__(self, surface: Surface, client: Client, out: Console | None) -> None:
        self._surface, self._client = surface, client
        self._writer = Writer(out) if out is not None and out.is_terminal and surface.talks else None
        self._spins = surface.talks and surface.err.is_terminal
        self._spinner: Spinner | None = None
        self._calls = Calls()
        self._preview: tuple[str, int, int] | None = None
        self._silent: tuple[str, int, int] | None = None
        """A preview that was left in the middle: the message will tell the whole of it."""
        self._written = ""
        """What of the preview stands on the screen."""
        self._cancelled = False
        self.answered = False
        """True while the last thing that the model said, an answer, stands on the screen whole."""

    async def remember(self, event: Event) -> None:
        """Take an event of which nothing is to be told."""
        if isinstance(event, ev.MessageAdded) and event.role == ASSISTANT:
            self._calls.ask(event, (await self._message(event)).calls)
        else:
            self._calls.take(event)

    async def tell(self, event: Event, took: int | None) -> None:
        """Tell what an event says; `took` is its step's µs."""
        match event:
            case ev.Chunk():
                self._hear(event)
                return
            case ev.PreviewReset():
                self._drop("whoever wrote this is gone; it goes on under another")
            case ev.MessageAdded(role=role) if role == ASSISTANT:
                await self._say_message(event)
            case ev.StepFailed(retry_at=int() as retry_at) if self._written:
                again = f"asked again in {duration(retry_at - event.at)}"
                self._drop(f"{shown(event.error.message)} (attempt {event.attempt}, {again})")
            case ev.RunFinished():
                self._drop("it ended here")
            case _:
                call = self._calls.take(event)
                line = await self._line_of_call(call, event) if call is not None else self._line_of(event, took)
                if line is not None:
                    self._drop("it goes on")
                    self._line(line)
        self._spin()

    def _line_of(self, event: Event, took: int | None) -> Text | None:
        """Return what to say of an event that is of no call, unless something else has said it."""
        if isinstance(event, ev.CancelReceived):
            self._cancelled = True
        left = isinstance(event, ev.StepFailed) and event.cancelled and self._cancelled
        answered = isinstance(event, ev.RunResumed) and any(call.waits for call in self._calls.under_way)
        return None if left or answered else line_of(event, took)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Show a sign of life as long as it lasts, wherever nothing else is being written."""
        if self._spins:
            self._spinner = self._surface.err.status(Text(_IDLE, style="dim"))
            self._spinner.start()
        try:
            yield
        finally:
            self.break_off()

    def break_off(self) -> None:
        """End what is being written, so that anything may be printed."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
        if self._writer is not None and self._written:
            self._silent = self._preview
            self._end_words()

    # Words

    def _hear(self, chunk: ev.Chunk) -> None:
        value = chunk.value
        call = self._calls.of(chunk)
        kind = value.get("kind") if isinstance(value, dict) and call is None else None
        if kind != "text":
            self._label(_PIECES.get(str(kind)) or f"{_name_of(call)}{brief(value, 60)}")
            return
        preview = (chunk.step, chunk.attempt, chunk.fence)
        if self._writer is None or preview == self._silent:
            return
        if preview != self._preview:
            self._drop("asked again")
            self._preview = preview
        self._write(str(value.get("text", "")))

    def _write(self, text: str) -> None:
        if self._writer is None or not text:
            return
        if not self._written:
            text = text.lstrip()
            if not text:
                return
            if self._spinner is not None:
                self._spinner.stop()
            self._writer.write("\n")
        self._written += text
        self._writer.write(text)

    def _end_words(self) -> None:
        assert self._writer is not None
        self._writer.end()
        self._writer.write("\n")
        self._written, self._preview = "", None

    def _drop(self, why: str) -> None:
        """End a preview that is no message."""
        if self._written:
            self._end_words()
            self._line(mark("✗", "yellow") + Text(f"broken off: {why}", style="yellow"))

    async def _say_message(self, event: ev.MessageAdded) -> None:
        message = await self._message(event)
        calls = self._calls.ask(event, message.calls)
        text = message.text.lstrip()
        self.answered = False
        if self._writer is not None:
            if text.rstrip() != self._written.rstrip():
                if not text.startswith(self._written):
                    self._drop("this is what it came to")
                self._write(text[len(self._written) :])
            if self._written:
                self._end_words()
            self.answered = not calls
        elif calls and text.strip():
            self._line(mark("»", "blue") + Text(cut(text, _MOST_SAID)))
        if not self._spins:
            for call in calls:
                self._line(mark("▸", "cyan") + Text(call.words))

    async def _message(self, event: ev.MessageAdded) -> Message:
        return message_of(await self._client.value(event), event.role)

    # Calls

    async def _line_of_call(self, call: Call, event: Event) -> Text | None:
        name = Text(call.words)
        match event:
            case ev.MessageAdded(role=role) if role == TOOL:
                return self._cut_line(await self._ending(call, event))
            case ev.StepFailed() if event.retry_at is not None:
                return mark("✗", "red") + name + Text(f"  {failure(event)}", style="red")
            case ev.StepDoubted():
                said = f"  {call.effect or 'once'} · in doubt: {shown(event.sentence)}"
                return mark("?", "yellow") + name + Text(said, style="yellow")
            case ev.StepResolved():
                return mark("·", "yellow") + name + Text(f"  {resolution(event)}", style="yellow")
            case ev.QuestionAsked():
                return mark("?", "yellow") + name + Text(f"  asks: {shown(event.text)}", style="yellow")
            case ev.QuestionAnswered():
                sign, style = ("✓", "green") if event.yes else ("✗", "yellow")
                return mark(sign, style) + name + Text(f"  {decision(event)}")
            case ev.ChildSpawned():
                return mark("▸", "cyan") + name + Text(f"  child {event.child}", style="dim")
            case _:
                return None

    async def _ending(self, call: Call, event: ev.MessageAdded) -> Text:
        message = await self._message(event)
        result = next(part for part in message.parts if isinstance(part, ToolResult))
        performed = not (event.step or "").rpartition("/")[2].startswith("answer")
        known = []
        if call.doubt:
            known.append("outcome unknown")
        elif performed or call.effect is not None:
            known.append(str(call.effect or "repeat"))
        elif call.child is None:
            known.append("refused" if call.denied else "not called")
        if performed or call.child is not None:
            known.append(duration(call.took(event.at)))
        sign, style = ("✗", "yellow" if call.doubt or call.denied else "red") if result.error else ("✓", "green")
        said = Text(f"  {' · '.join(known)}", style="dim")
        return mark(sign, style) + Text(call.words) + said + Text(f"  {cut(result.text, _MOST_SAID)}", style="dim")

    def _cut_line(self, line: Text) -> Text:
        if self._surface.err.is_terminal:
            line.truncate(max(self._surface.err.width - len(_INDENT), 20), overflow="ellipsis")
        return line

    # Lines and the sign of life

    def _line(self, line: Text) -> None:
        if self._written:
            self._end_words()
        self._surface.say(Text(_INDENT) + line)

    def _spin(self) -> None:
        if self._spinner is None or self._written:
            return
        self._label(_under_way(self._calls.under_way))
        self._spinner.start()

    def _label(self, text: str) -> None:
        if self._spinner is not None and not self._written:
            room = max(self._surface.err.width - 4, 20)
            self._spinner.update(Text(cut(text, room), style="dim"))


def _under_way(calls: Sequence[Call]) -> str:
    asked = [call for call in calls if not call.waits]
    return ", ".join(call.words for call in asked) if asked else _IDLE


def _name_of(call: Call | None) -> str:
    return f"{shown(call.name)}: " if call is not None else ""
