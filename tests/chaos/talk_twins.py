"""Deliberately broken twins of the loop of an agent."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.agent.turn import Turn
from holdfast.agent.voice import Voice
from holdfast.core.message import TOOL, Message, Part, ToolCall, ToolResult
from holdfast.engine.doubt import Doubt
from holdfast.engine.speech import Said
from holdfast.journal import replay as r


def _calls_again(place: str) -> None:
    """A `once` tool that was under way at a death is called again, as if nothing could have come of it."""

    async def resolve(self: Doubt, doubt: r.InQuestion) -> Any:
        await self._write_resolved(how="policy", outcome="not_done")
        return await self._call.attempt(doubt.attempt + 1)

    Doubt.resolve = resolve  # type: ignore[method-assign]


def _answers_late(place: str) -> None:
    """That the outcome of a call is unknown is told to the model only after it was asked to go on."""
    answer, generate = Turn._answer, Turn._generate
    late: list[Part] = []

    async def answer_some(self: Turn, voice: Voice, calls: Sequence[ToolCall]) -> Voice:
        voice = await answer(self, voice, calls)
        results = self._messages[-1].parts
        late.extend(part for part in results if isinstance(part, ToolResult) and "is unknown" in part.text)
        self._messages[-1] = Message(TOOL, tuple(part for part in results if part not in late))
        return voice

    async def generate_first(self: Turn, generating: Any) -> Said:
        said = await generate(self, generating)
        if late:
            self._messages.append(Message(TOOL, tuple(late)))
            late.clear()
        return said

    Turn._answer, Turn._generate = answer_some, generate_first  # type: ignore[method-assign]


TALK_TWINS: Final[dict[str, Callable[[str], None]]] = {"calls_again": _calls_again, "answers_late": _answers_late}
