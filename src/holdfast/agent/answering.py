"""How each call of a message is answered: performed by its effect, refused, denied, or told as unknown."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from holdfast.agent.arguments import BadArguments
from holdfast.agent.result import Shown, show, show_error
from holdfast.agent.tool import Tool
from holdfast.core.codec import Codec, digest
from holdfast.core.errors import InDoubt, InvalidInput, NotFound, RunError, StepError, ToolError
from holdfast.core.message import TOOL, ToolCall, ToolResult
from holdfast.core.signal import Decision
from holdfast.core.transcript import unknown_outcome
from holdfast.engine.context import Context
from holdfast.engine.function import StepCode
from holdfast.engine.policy import Policy
from holdfast.engine.speech import Said, Speech
from holdfast.engine.talk import Talk

_ANSWER: Final = "answer"
_STEP: Final = "a step"
_QUESTION: Final = "a question"
_CHILD: Final = "a child"


@dataclass(frozen=True, slots=True)
class Answering:
    """What stays the same while the calls of a turn are answered."""

    context: Context
    talk: Talk
    tools: Mapping[str, Tool[..., Any]]
    expires: float | timedelta | None
    """How long a person has to agree to a call."""

    async def answer(self, call: ToolCall) -> ToolResult:
        """Return what the model is told of a call, once it stands in the journal.

        What is recorded of it counts, whatever has become of the tool: a call is made, asked about or refused by the
        tool as it is now only where nothing is recorded of that yet.
        """
        said = await self.talk.recorded()
        if said is not None:
            return _result(said)
        tool, arguments = self.tools.get(call.name), call.arguments
        begun = self._next()
        if begun is None and (refusal := self._refusal(call, arguments)) is not None:
            return await self._put(call, show_error(refusal, self.talk.drive.secrets))
        if begun == _QUESTION or (begun is None and tool is not None and tool.needs_approval(tool.read(arguments))):
            decision = await self._ask(call)
            if (said := await self.talk.recorded()) is not None:
                return _result(said)
            if not decision:
                return await self._put(call, Shown(_denied(decision), error=True))
            arguments = json.dumps(decision.args) if decision.args is not None else arguments
            begun = self._next()
            if begun is None and (refusal := self._refusal(call, arguments)) is not None:
                return await self._put(call, show_error(refusal, self.talk.drive.secrets))
        if begun == _CHILD or (begun is None and tool is not None and tool.child is not None):
            return await self._run_child(call, tool, arguments, recorded=begun is not None)
        return await self._perform(call, tool, arguments)

    def _next(self) -> str | None:
        following = self.talk.next()
        return following.what if following is not None else None

    def _refusal(self, call: ToolCall, arguments: str) -> str | None:
        """Return why a call cannot be made, for the model; None where it can."""
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            return f"There is no tool called {call.name!r}. Nothing was done. There are: {known}."
        try:
            tool.read(arguments)
        except BadArguments as error:
            return str(error)
        return None

    async def _put(self, call: ToolCall, shown: Shown) -> ToolResult:
        """Add what the model is told of a call that no step told it of."""
        blobs = (shown.blob,) if shown.blob is not None else ()
        return _result(await self.talk.put(_ANSWER, TOOL, [_told(call, shown)], blobs=blobs))

    # Asking a person

    async def _ask(self, call: ToolCall) -> Decision:
        """Ask for agreement; the question is made of the recorded call alone, so that the answer holds for it."""
        given = json.loads(call.arguments or "{}")
        show = {"tool": call.name, "arguments": given}
        return await self.context.ask(f"Call {call.name}?", show=show, args=given, expires=self.expires)

    # Performing

    async def _perform(self, call: ToolCall, tool: Tool[..., Any] | None, arguments: str) -> ToolResult:
        """Perform a call as a step, by the tool's effect."""
        try:
            given = tool.read(arguments) if tool is not None and tool.child is None else {}
            code = tool.code if tool is not None and tool.child is None else _gone(call.name)
        except BadArguments as error:
            given, code = {}, _gone(call.name, str(error))  # begun by a tool that took what this one does not
        shape = partial(self._speech, call)
        try:
            sent = digest(json.loads(arguments or "{}"), f"the arguments of {call.name}")
            outcome = await self.talk.say(code, given, shape, digest=sent, tells=(ToolError,))
        except InDoubt as error:
            if tool is not None and tool.in_doubt == "raise":
                raise
            return await self._put(call, show_error(unknown_outcome(error.message), self.talk.drive.secrets))
        except StepError as error:
            return await self._put(call, show_error(f"{error.type}: {error.message}", self.talk.drive.secrets))
        if isinstance(outcome, Said):
            return _result(outcome)
        return await self._put(call, show(call.name, outcome, self.talk.drive.secrets))

    def _speech(self, call: ToolCall, value: Any) -> Speech:
        secrets = self.talk.drive.secrets
        shown = show_error(str(value), secrets) if isinstance(value, ToolError) else show(call.name, value, secrets)
        return Speech(TOOL, [_told(call, shown)], blobs=(shown.blob,) if shown.blob is not None else ())

    async def _run_child(
        self, call: ToolCall, tool: Tool[..., Any] | None, arguments: str, *, recorded: bool
    ) -> ToolResult:
        """Let a call be a run of its own, and tell what came of it; of a recorded one nothing is asked for again."""
        what = tool.child if tool is not None else None
        secrets = self.talk.drive.secrets
        try:
            if tool is None or what is None or recorded:
                value = await self.talk.same_child(what, lambda: tool.read(arguments) if tool is not None else {})
            else:
                value = await self.talk.child(what, tool.read(arguments))
        except RunError as error:
            return await self._put(call, show_error(f"It failed: {error.reason}", secrets))
        except (BadArguments, InvalidInput, NotFound) as error:
            return await self._put(call, show_error(str(error), secrets))
        return await self._put(call, show(call.name, value, secrets))


def _told(call: ToolCall, shown: Shown) -> ToolResult:
    return ToolResult(id=call.id, name=call.name, text=shown.text, error=shown.error, blob=shown.ref)


def _result(said: Said) -> ToolResult:
    result = said.message.parts[0]
    assert isinstance(result, ToolResult)
    return result


def _denied(decision: Decision) -> str:
    if decision.expired:
        return "It was not called: nobody agreed to it in time."
    note = f" They say: {decision.note}" if decision.note else ""
    return f"It was not called: a person refused it.{note}"


def _gone(name: str, why: str = "") -> StepCode:
    """Return what is performed in the place of a tool that is not there any more, or takes something else now.

    By then the call was begun, so that this is never asked for the first attempt of a `once` tool.
    """

    async def gone() -> None:
        raise ToolError(why or f"There is no tool called {name!r} any more.")

    return StepCode(
        function=gone, name=name, is_async=True, inject=None, parameters=(), variadic=False, policy=Policy(),
        own_codec=Codec(Any), aliases=(), simple=False, lasting=True,
    )  # fmt: skip
