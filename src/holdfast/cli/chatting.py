"""A conversation at a terminal, or over a pipe: what is typed, what is answered, and what else may be asked."""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.cli.bill import Bill, bill_of
from holdfast.cli.exits import Exit
from holdfast.cli.past import end_of, lines_of_message
from holdfast.cli.questions import whole
from holdfast.cli.surface import Surface, shown
from holdfast.cli.trouble import tell_trouble
from holdfast.cli.watching import Rest, Watching
from holdfast.cli.writer import write_answer
from holdfast.client.conversation import Conversation
from holdfast.client.protocol import Client, Question, RunSummary
from holdfast.core.errors import Conflict, InvalidInput
from holdfast.core.ids import RunId
from holdfast.core.message import Message
from holdfast.core.status import Status
from holdfast.runtime import Runtime

T = TypeVar("T")
_PROMPT: Final = "you> "
_SETTLE_SECONDS: Final = 5.0
_HELP: Final = (
    ("/history", "everything that was said"),
    ("/cost", "what the conversation took so far"),
    ("/help", "this"),
    ("/exit", "leave, as Ctrl-D does; it is kept"),
    ("Ctrl-C", "while it answers: stop the answer, or tell it something"),
)
_STOP: Final = "[s]top it, [t]ell it something, Enter goes on, Ctrl-C leaves: "
_DECIDE: Final = "[y]es, [n]o, [c]hange it, [l]ater: "


@dataclass
class Chatting:
    """One conversation, as one process takes part in it."""

    surface: Surface
    screen: Console
    runtime: Runtime
    talk: Conversation[Any]
    name: str
    again: str
    """The command that comes back to it."""
    by: str | None

    @cached_property
    def asks(self) -> bool:
        """True where there is somebody to ask."""
        return not self.surface.json and sys.stdin.isatty() and self.surface.err.is_terminal

    @property
    def client(self) -> Client:
        """Every operation on runs."""
        return self.runtime.client

    def go(self) -> Exit:
        """Talk until nobody says anything more."""
        turns = self.runtime.wait(self.talk.turns())
        self._greet(turns)
        for turn in turns:
            if not turn.status.terminal and turn.status is not Status.QUARANTINED:
                self._take_up(turn)
                if (left := self._answer(RunId(turn.id))) is not None:
                    return left
        while (text := self._hear()) is not None:
            if text.startswith("/") and self.asks:
                if text == "/exit":
                    break
                self._command(text)
            elif text:
                run = self.runtime.wait(self.talk.send(text, by=self.by))
                if (left := self._answer(run.id)) is not None:
                    return left
        self._leave()
        return Exit.FINE

    def interrupted(self) -> Exit:
        """Say how to go on after Ctrl-C."""
        if self.asks:
            self.surface.err.print()
        hint = f"Come back to it:\n  {self.again}"
        data = {"conversation": self.talk.id, "resume": self.again}
        self.surface.fail("interrupted", "the conversation is kept", hint=hint, word="interrupted", **data)
        return Exit.INTERRUPTED

    def _greet(self, turns: Sequence[RunSummary]) -> None:
        self._say(Text.assemble((shown(self.name), "bold"), f"  conversation {shown(self.talk.id)}"))
        if not self.asks:
            return
        self._say(Text("/help tells what else may be typed; Ctrl-D leaves", style="dim"))
        self._show(self.runtime.wait(end_of(self.client, turns)))

    def _take_up(self, turn: RunSummary) -> None:
        """Say that an answer is still owed, and let this process work on it."""
        assert self.runtime._worker is not None
        worker = self.runtime._worker
        self.runtime.wait(_call(lambda: worker.add_run(RunId(turn.id))))
        info = self.runtime.wait(self.client.info(RunId(turn.id)))
        said = info.input.get("message", "") if isinstance(info.input, dict) else ""
        if self.asks:
            self._say(Text.assemble(("\nyou  ", "bold cyan"), shown(str(said))))
        self._say(Text("  ↻ this was not answered yet: it goes on", style="cyan"))

    def _leave(self) -> None:
        if self.asks:
            self._say(Text("Come back to it:", style="dim"))
            self._say(Text(f"  {self.again}"))

    # What is typed

    def _hear(self) -> str | None:
        """Return what is said next; None when nothing more is."""
        if not self.asks:
            line = sys.stdin.readline()
            return line.strip() if line else None
        while True:
            try:
                return input(_PROMPT).strip()
            except EOFError:
                self.surface.err.print()
                return None
            except KeyboardInterrupt:
                self._say(Text("\nCtrl-D leaves", style="dim"))

    def _command(self, text: str) -> None:
        match text:
            case "/help":
                for name, meaning in _HELP:
                    self._say(Text.assemble(f"  {name:<9}", (meaning, "dim")))
            case "/history":
                self._show(self.runtime.wait(self.talk.history()))
            case "/cost":
                bill = self.runtime.wait(self._bill())
                self._say(Text(f"  {bill.words if bill.generations else 'nothing was asked yet'}"))
            case _:
                self._say(Text(f"there is no {shown(text.split()[0])}; /help tells what there is", style="dim"))

    async def _bill(self) -> Bill:
        whole = Bill()
        for turn in await self.talk.turns():
            whole.add(await bill_of(self.client, RunId(turn.id)))
        return whole

    # What is answered

    def _answer(self, run: RunId) -> Exit | None:
        """Show a turn to its end; return how to leave where nothing can follow it."""
        watching = Watching(self.surface, self.client, run, self.screen)
        while True:
            try:
                rest = self._watch(watching)
            except KeyboardInterrupt:
                if not self.asks:
                    raise
                self._stop(run)
                continue
            if not (self.asks and rest.questions and all(self._decide(question) for question in rest.questions)):
                return self._ended(rest)

    def _watch(self, watching: Watching) -> Rest:
        """Wait where Ctrl-C can be heard: what is being written is ended before anything else is."""
        settled = threading.Event()

        async def watch() -> Rest:
            try:
                return await watching.until_rest(self.runtime)
            finally:
                settled.set()

        watched: Any = self.runtime._portal.start_task_soon(watch)
        try:
            rest: Rest = watched.result()
        except KeyboardInterrupt:
            watched.cancel()
            settled.wait(_SETTLE_SECONDS)
            raise
        return rest

    def _stop(self, run: RunId) -> None:
        """Ask what becomes of an answer that was interrupted; Ctrl-C again leaves it to go on later."""
        try:
            word = input(_STOP).strip().lower()
            text = input("tell it: ").strip() if word.startswith("t") else ""
        except EOFError:
            raise KeyboardInterrupt from None
        if word.startswith("s"):
            self.runtime.wait(self.client.cancel(run, reason="stopped in the chat", by=self.by))
        elif text:
            self.runtime.wait(self.talk.send(text, if_busy="steer", by=self.by))

    def _decide(self, question: Question) -> bool:
        """Ask for a decision and send it; False where it is left for later."""
        self._say(Text(shown(question.text), style="bold"))
        for line in whole("show", question.show) if question.show is not None else ():
            self._say(line)
        while True:
            try:
                word = input(_DECIDE).strip().lower()[:1]
                changed = _changes(input("as one JSON object: ")) if word == "c" else None
            except EOFError:
                return False
            except InvalidInput as error:
                self.surface.fail_with(error)
                continue
            if word == "l":
                return False
            if word in ("y", "n", "c") and self._sent(question, yes=word != "n", changed=changed):
                return True

    def _sent(self, question: Question, *, yes: bool, changed: dict[str, Any] | None) -> bool:
        try:
            self.runtime.wait(
                self.client.answer(question.id, yes, shown=question.shown, args=changed, by=self.by)
            )  # fmt: skip
        except Conflict:
            self._say(Text("it was answered meanwhile", style="dim"))
        except InvalidInput as error:
            self.surface.fail_with(error)
            return False
        return True

    def _ended(self, rest: Rest) -> Exit | None:
        info = rest.info
        if self.surface.json and info.status.terminal:
            bill = rest.bill.form() if rest.bill is not None else None
            told = {"conversation": self.talk.id, "run": info.id, "status": info.status, "result": info.result}
            self._print(lambda: self.surface.value({**told, "error": info.error, "usage": bill}))
            return None
        if info.status is Status.COMPLETED:
            if not rest.answered:
                self._print(lambda: write_answer(self.screen, info.result))
            if rest.bill is not None and self.asks:
                self._say(Text(f"{rest.bill.words}", style="dim"))
            return None
        if info.status is Status.CANCELLED:
            self._say(Text("  ■ stopped", style="yellow"))
            return None
        left = tell_trouble(self.surface, rest, self.again)
        return None if info.status.terminal and self.asks else left

    def _print(self, write: Callable[[], None]) -> None:
        """Print to where results go: what the program prints itself goes elsewhere."""
        aside, sys.stdout = sys.stdout, self.screen.file
        try:
            write()
            sys.stdout.flush()
        finally:
            sys.stdout = aside

    def _say(self, text: Text) -> None:
        self.surface.say(text)

    def _show(self, messages: Sequence[Message]) -> None:
        """Show what was said; lines break between words."""
        for message in messages:
            for line in lines_of_message(message):
                self.surface.err.print(line)


async def _call(function: Callable[[], T]) -> T:
    return function()


def _changes(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"that is no object of what to change: {error}") from None
