"""One generation as a step: what the model is asked, what of it is shown while it comes, and what it took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace as replace_speech

from holdfast.agent.compaction import COMPACT, REQUEST, Degenerate, check_summary
from holdfast.agent.cost import BYTES_PER_TOKEN, Cost, messages_bytes
from holdfast.agent.model import Model, ModelBusy, ModelCut, ModelError, ModelRefused, Reply, Request, ToolSpec
from holdfast.agent.pace import PACE
from holdfast.agent.preview import Preview
from holdfast.core.budget import USD
from holdfast.core.codec import Codec
from holdfast.core.message import ASSISTANT, Message, Usage
from holdfast.core.retry import Retry
from holdfast.core.status import Effect
from holdfast.engine.function import StepCode
from holdfast.engine.policy import Policy
from holdfast.engine.speech import Said, Shape, Speech
from holdfast.engine.step import Step
from holdfast.engine.talk import Talk

MODEL: Final = "model"
"""The name of a generation's step."""
PATIENCE: Final = Retry(attempts=8, first=1.0, factor=2.0, most=60.0)
"""How a model that is busy, or was cut off, is asked again if nothing is said."""
_WORTH_IT: Final = (ModelBusy, ModelCut)
_UNANSWERED: Final = (ModelBusy, ModelRefused)
"""What a provider says before it generates anything: such an attempt costs nothing."""
_ANY: Final = Codec(Any)


@dataclass(frozen=True, slots=True)
class Generating:
    """What stays the same for all generations of a turn."""

    model: Model
    instructions: str
    tools: Sequence[ToolSpec]
    output: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    retry: Retry

    def tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens messages take about, by the rule that budgets go by."""
        return messages_bytes(messages) // BYTES_PER_TOKEN

    def request(self, messages: Sequence[Message], key: str = "") -> Request:
        """Return what the model is asked; the same messages give the same bytes, in any process."""
        return Request(
            instructions=self.instructions,
            messages=tuple(messages),
            tools=tuple(self.tools),
            output=self.output,
            settings=self.settings,
            key=key,
        )

    async def generate(self, talk: Talk, messages: Sequence[Message]) -> Said:
        """Return the next message, as it stands in the journal.

        A generation changes nothing in the world: one that was cut off is asked again, and what was lost is charged.

        Raises:
            StepError: the model refuses, or did not answer as often as it may be asked.
        """

        said = await self._say(talk, MODEL, messages, _speech)
        assert isinstance(said, Said)
        return said

    async def summarise(self, talk: Talk, messages: Sequence[Message], up_to: int, phase: str = "") -> str:
        """Return a summary of messages, which stands in their place from then on: of all up to that entry.

        The phase that they had come to is kept beside it.

        Raises:
            StepError: the model refuses, did not answer, or what it answered is no summary.
        """
        plain = replace(self, output=None)
        summary = await plain._say(talk, COMPACT, [*messages, REQUEST], partial(_summary, messages, up_to, phase))
        return str(summary)

    async def _say(self, talk: Talk, name: str, messages: Sequence[Message], shape: Shape) -> Any:
        async def ask(step: Step[Any]) -> Reply:
            request = self.request(messages, f"{step.idempotency_key}.{step.attempt}")
            return await self.model.ask(request, Preview(step.emit, talk.drive.secrets).say)

        counted = Cost(self.model, lambda: self.request(messages))
        gate = PACE.gate(self.model.lane, talk.drive.store.now, lambda: counted.tokens)
        draws = partial(counted.draws, priced=talk.drive.counts(USD))
        return await talk.say(self._code(name, ask), {}, shape, spent=_wasted, draws=draws, gate=gate)

    def _code(self, name: str, ask: Any) -> StepCode:
        worth_it = self.retry if self.retry.on is not None else replace(self.retry, on=_WORTH_IT)
        return StepCode(
            function=ask, name=name, is_async=True, inject="step", parameters=(), variadic=False,
            policy=Policy(effect=Effect.REPEAT, retry=worth_it, not_performed=_UNANSWERED), own_codec=_ANY, aliases=(),
            simple=False, lasting=True,
        )  # fmt: skip


def _speech(reply: Reply) -> Speech:
    message = reply.message
    return Speech(
        ASSISTANT, message.parts, native=message.native, provider=message.provider, model=reply.model,
        usage=known(reply.usage),
    )  # fmt: skip


def _summary(messages: Sequence[Message], up_to: int, phase: str, reply: Reply) -> Speech:
    check_summary(reply, messages)
    return replace_speech(_speech(reply), up_to=up_to, phase=phase)


def _wasted(error: BaseException) -> dict[str, int | None] | None:
    usage = error.usage if isinstance(error, ModelError | Degenerate) else None
    return known(usage) if usage is not None else None


def known(usage: Usage) -> dict[str, int | None] | None:
    """Return what is known of what a generation took; None where nothing is."""
    found: dict[str, int | None] = msgspec.to_builtins(usage)
    return found or None
