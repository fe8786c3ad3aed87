"""What was said in a run, as a fold over its entries: messages in the order in which a model is sent them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from holdfast.core import entry as e
from holdfast.core.codec import Codec, decode_any
from holdfast.core.errors import InvalidValue
from holdfast.core.message import ASSISTANT, TOOL, USER, Message, Part, Text, ToolCall, ToolResult
from holdfast.core.status import Effect
from holdfast.core.stepkey import branch_of, set_of

PARTS: Final = Codec(list[Part])
CALLS: Final = "gather"
"""The name of the branch sets in which the calls of a message are answered, one branch each."""
ENTER_PHASE: Final = "enter_phase"
"""The tool by which an agent of several phases enters another."""
_NOT_RUN: Final = "It was not run: the turn ended before it."
_NO_RESULT: Final = "There is no result: the turn ended before it."


def unknown_outcome(why: str) -> str:
    """Return what a model is told of a call that may or may not have been performed."""
    return (
        f"The outcome is unknown ({why}): it may or may not have happened. It was not tried again. "
        "Find out before you call it again, or say that it is not known."
    )


def entered(call: ToolCall, result: ToolResult) -> str:
    """Return the phase that a call led to; nothing where it led to none."""
    if call.name != ENTER_PHASE or result.error:
        return ""
    with suppress(InvalidValue):
        given = decode_any(call.arguments.encode())
        phase = given.get("phase") if isinstance(given, Mapping) else None
        return phase if isinstance(phase, str) else ""
    return ""


class _Calls(Struct):
    """The calls of one message, and what is known of each by its place."""

    calls: Sequence[ToolCall]
    results: dict[int, ToolResult] = {}
    begun: dict[int, str] = {}
    """Why nobody knows how one ended, or that it was begun."""

    def message(self, ended: bool) -> Message | None:
        """Return the results in the order of the calls; of a turn that has ended every call has one."""
        parts = [self._result(place, call, ended) for place, call in enumerate(self.calls, 1)]
        known = tuple(part for part in parts if part is not None)
        return Message(TOOL, known) if known else None

    def _result(self, place: int, call: ToolCall, ended: bool) -> ToolResult | None:
        known = self.results.get(place)
        if known is not None or not ended:
            return known
        return ToolResult(id=call.id, name=call.name, text=self.begun.get(place, _NOT_RUN), error=True)


class Transcript:
    """Follows a run's entries; `messages` is what was said so far.

    Results stand in the order of the calls, whichever was there first. A call of a turn that has ended without its
    result is answered by what is known of it, so that no call hangs loose.
    """

    def __init__(self) -> None:
        self._said: list[tuple[int, Message | _Calls]] = []
        self._sets: dict[str, _Calls] = {}
        self._ended = False
        self.phase = ""
        """The phase that was last entered; nothing where none was."""
        self.compacted = False
        """True once a summary stands in the place of what came before, earlier turns included."""

    def take(self, entry: e.Entry, body: bytes | None = None) -> None:
        """Add the next entry; `body` is its value where that stands in a blob."""
        match entry:
            case e.RunStarted():
                self._start(entry, body)
            case e.MessageAdded(role=role) if role == TOOL:
                self._answer(entry, body)
            case e.MessageAdded():
                self._add(entry, read_message(entry, body))
            case e.HistoryCompacted():
                self._compact(entry, body)
            case e.StepStarted(effect=Effect.ONCE, waits=[]):
                self._note(entry.step, unknown_outcome("the turn ended while it was under way"))
            case e.StepDoubted():
                self._note(entry.step, unknown_outcome(entry.sentence))
            case e.StepFailed(retry_at=None) if not entry.cancelled:
                self._note(entry.step, f"{entry.error.type}: {entry.error.message}")
            case e.StepStarted(waits=[]) | e.ChildSpawned():
                self._note(entry.step, _NO_RESULT)
            case e.RunFinished():
                self._ended = True
            case _:
                pass

    @property
    def messages(self) -> list[Message]:
        """Everything that was said, in order."""
        known = [one if isinstance(one, Message) else one.message(self._ended) for _, one in self._said]
        return [message for message in known if message is not None]

    def _start(self, entry: e.RunStarted, body: bytes | None) -> None:
        given = decode_any(entry.raw if body is None else body)
        text = given.get("message") if isinstance(given, Mapping) else None
        if isinstance(text, str):
            self._said.append((entry.seq, Message(USER, (Text(text),))))

    def _add(self, entry: e.MessageAdded, message: Message) -> None:
        self._said.append((entry.seq, message))
        if message.role == ASSISTANT and message.calls:
            branch = branch_of(entry.step or "0/")
            asked = _Calls(message.calls)
            self._sets[f"{branch}/{CALLS}#{len(self._sets) + 1}"] = asked
            self._said.append((entry.seq, asked))

    def _answer(self, entry: e.MessageAdded, body: bytes | None) -> None:
        place = self._place(entry.step or "")
        results = [part for part in read_message(entry, body).parts if isinstance(part, ToolResult)]
        if place is not None and results:
            calls, number = place
            calls.results[number] = results[0]
            self.phase = entered(calls.calls[number - 1], results[0]) or self.phase

    def _note(self, step: str, text: str) -> None:
        place = self._place(step)
        if place is not None:
            place[0].begun[place[1]] = text

    def _place(self, step: str) -> tuple[_Calls, int] | None:
        """Return the calls that a step is an answer to, and which of them."""
        branch = branch_of(step)
        asked = self._sets.get(set_of(branch) or "")
        number = branch.rpartition(".")[2]
        return (asked, int(number)) if asked is not None and number.isdecimal() else None

    def _compact(self, entry: e.HistoryCompacted, body: bytes | None) -> None:
        summary = decode_any(entry.raw if body is None else body)
        kept = [(seq, one) for seq, one in self._said if seq > entry.up_to]
        self._said = [(entry.up_to, summary_message(str(summary))), *kept]
        self.compacted, self.phase = True, entry.phase or self.phase


def summary_message(summary: str) -> Message:
    """Return the message that stands in the place of those that a summary replaced."""
    return Message(USER, (Text(f"Summary of the conversation so far:\n\n{summary}"),))


def read_message(entry: e.MessageAdded, body: bytes | None = None) -> Message:
    """Return the message that an entry holds; `body` is its parts where they stand in a blob.

    Raises:
        InvalidValue: they are no parts of a message.
    """
    parts = PARTS.decode(entry.raw if body is None else body, "a message")
    role: Any = entry.role
    return Message(role, tuple(parts), entry.native, entry.provider)


def said_text(entry: e.Entry | None) -> Raw:
    """Return the result of a run that ended with what was said in an entry: the message's text, as JSON.

    Raises:
        ValueError: the entry is no message.
    """
    if not isinstance(entry, e.MessageAdded) or entry.blob is not None:
        raise ValueError("it is no message whose text could be the result")
    return Raw(msgspec.json.encode(read_message(entry).text))


def transcript(entries: Iterable[e.Entry]) -> list[Message]:
    """Return what was said in a run whose values all stand in its entries."""
    said = Transcript()
    for entry in entries:
        said.take(entry)
    return said.messages
