"""Every model that pydantic-ai knows, by its model layer."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import httpx2
import msgspec
from pydantic_ai import direct
from pydantic_ai import exceptions as foreign
from pydantic_ai import messages as theirs
from pydantic_ai.models import Model as TheirModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from holdfast.agent import header
from holdfast.agent.lane import RateSeen
from holdfast.agent.model import (
    CallPiece,
    ModelBusy,
    ModelCut,
    ModelError,
    ModelRefused,
    Piece,
    ReasoningPiece,
    Reply,
    Request,
    Say,
    TextPiece,
)
from holdfast.agent.pace import PACE
from holdfast.agent.providers import faults, prices
from holdfast.agent.providers.foreign import message_of, messages_of
from holdfast.agent.providers.web import FIRST_SECONDS, kept, shown
from holdfast.agent.providers.whole import whole_calls
from holdfast.agent.rate import seen_in
from holdfast.core.message import ToolCall, Usage
from holdfast.core.retry import checked_seconds

_STALL_SECONDS: Final = 300.0
"""Longer than elsewhere: the pings of a provider that thinks are not seen through its SDK."""
_STOPS: Final = {"stop": "end", "tool_call": "calls", "length": "length", "content_filter": "refused"}
_WITHOUT_FINISH: Final = {"test", "function"}
"""Systems of pydantic-ai that speak to nobody, and never say why they finished."""
_Kept = AsyncGenerator[None, None]


class PydanticAI:
    """A model of pydantic-ai: one that you made, or `provider:model` as it names them.

    One that is made from a name has its own connections for each event loop, closed with it. Its keys are those that
    pydantic-ai finds in the environment.
    """

    def __init__(
        self,
        model: "TheirModel | str",
        *,
        first_seconds: float = FIRST_SECONDS,
        stall_seconds: float = _STALL_SECONDS,
    ) -> None:
        self._given = model
        self._first = checked_seconds("PydanticAI(first_seconds=)", first_seconds)
        self._stall = checked_seconds("PydanticAI(stall_seconds=)", stall_seconds)
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, TheirModel, _Kept]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"PydanticAI({self._named!r})"

    @property
    def _named(self) -> str:
        return self._given if isinstance(self._given, str) else f"{self._given.system}:{self._given.model_name}"

    @property
    def name(self) -> str:
        return f"pydantic-ai:{self._named}"

    @property
    def lane(self) -> str:
        provider = self._named.partition(":")[0]
        address = None if isinstance(self._given, str) else self._given.base_url
        return f"pydantic-ai {provider} {shown(address) if address else '-'}"

    def cost_of(self, usage: Usage) -> int | None:
        """Return what so much would cost, in nano-USD; None where nobody knows."""
        provider, _, model = self._named.partition(":")
        return prices.priced(usage, model, provider=provider).cost

    async def ask(self, request: Request, say: Say) -> Reply:
        progress = _Progress(say)
        with self._translated(progress):
            model = await self._model()
            response = await self._generate(model, request, progress)
        await prices.load()
        return self._reply(response, model)

    async def _model(self) -> TheirModel:
        if not isinstance(self._given, str):
            return self._given
        loop = asyncio.get_running_loop()
        pid, known, _ = self._made.get(loop, (0, None, None))
        if known is None or pid != os.getpid():
            known = infer_model(self._given)
            keeping = kept(known)
            self._made[loop] = (os.getpid(), known, keeping)
            await anext(keeping)
        return known

    async def _generate(self, model: TheirModel, request: Request, progress: "_Progress") -> theirs.ModelResponse:
        loop = asyncio.get_running_loop()
        sent = messages_of(request, self.name)
        asking = direct.model_request_stream(
            model, sent, model_settings=_settings(model, request), model_request_parameters=_parameters(model, request)
        )
        async with asyncio.timeout(self._first) as patience, asking as stream:
            async for event in stream:
                if not progress.heard:
                    PACE.after(self.lane, RateSeen())
                patience.reschedule(loop.time() + self._stall)
                progress.take(event)
                progress.usage = _usage(stream.get().usage)
            return stream.get()

    def _reply(self, response: theirs.ModelResponse, model: TheirModel) -> Reply:
        usage = _usage(response.usage)
        if not _is_whole(response, model):
            raise ModelCut(f"{self.name} ended its stream before its answer", usage=usage)
        message = message_of(response, self.name)
        stop = _STOPS.get(response.finish_reason or "stop", "end")
        calls = whole_calls(message.calls, short=stop == "length", asked=self.name, usage=usage)
        whole = iter(calls)
        parts = tuple(next(whole) if isinstance(part, ToolCall) else part for part in message.parts)
        message = msgspec.structs.replace(message, parts=parts)
        if calls and stop == "end":
            stop = "calls"
        answered = response.model_name or model.model_name
        written = response.usage.cache_write_tokens
        used = prices.priced(usage, answered, provider=response.provider_name or model.system, written=written)
        return Reply(message=message, usage=used, stop=stop, model=answered)

    @contextmanager
    def _translated(self, progress: "_Progress") -> Iterator[None]:
        """The only place that knows the exceptions of pydantic-ai."""
        try:
            yield
        except foreign.ModelHTTPError as error:
            raise self._of_status(error, progress) from error
        except foreign.ModelAPIError as error:
            if getattr(error, "phase", None) in ("pool", "connect"):
                raise ModelBusy(f"{self.name} cannot be reached: {error}", retry_after=error.retry_after) from error
            raise ModelCut(f"{self.name} broke off: {error}", usage=progress.usage) from error
        except TimeoutError as error:
            raise ModelCut(f"{self.name} was silent for too long", usage=progress.usage) from error
        except (foreign.UserError, ImportError) as error:
            raise ModelRefused(f"{self.name} cannot be asked: {error}") from error
        except httpx2.LocalProtocolError as error:
            raise ModelRefused(f"{self.name} cannot be asked: {header.told(error)}") from error
        except (foreign.AgentRunError, httpx2.HTTPError, httpx2.StreamError, ValueError) as error:
            raise ModelCut(f"{self.name} sent what cannot be read: {error}", usage=progress.usage) from error

    def _of_status(self, error: foreign.ModelHTTPError, progress: "_Progress") -> ModelError:
        if error.in_stream:
            body = error.body.get("error", error.body) if isinstance(error.body, dict) else str(error)
            return faults.in_stream(body, model=self.name, begun=progress.begun, usage=progress.usage)
        body_bytes = msgspec.json.encode(error.body, enc_hook=str)
        headers = error.headers or {}
        found = faults.by_status(error.status_code, body_bytes, headers, model=self.name)
        PACE.after(self.lane, seen_in(headers, busy=isinstance(found, ModelBusy), now=datetime.now(UTC)))
        return found


class _Progress:
    """What was told of a reply so far."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._calls: dict[int, int] = {}
        self.heard = self.begun = False
        self.usage = Usage()

    def take(self, event: Any) -> None:
        self.heard = True
        for piece in self._pieces(event):
            self.begun = True
            self._say(piece)

    def _pieces(self, event: Any) -> Iterator[Piece]:
        match event:
            case theirs.PartStartEvent(index=index, part=theirs.ToolCallPart() as call):
                place = self._calls[index] = len(self._calls)
                arguments = call.args_as_json_str() if call.args else ""
                yield CallPiece(index=place, id=call.tool_call_id, name=call.tool_name, arguments=arguments)
            case theirs.PartStartEvent(part=theirs.TextPart(content=text)) if text:
                yield TextPiece(text)
            case theirs.PartStartEvent(part=theirs.ThinkingPart(content=text)) if text:
                yield ReasoningPiece(text)
            case theirs.PartDeltaEvent(delta=theirs.TextPartDelta(content_delta=text)) if text:
                yield TextPiece(text)
            case theirs.PartDeltaEvent(delta=theirs.ThinkingPartDelta(content_delta=str(text))) if text:
                yield ReasoningPiece(text)
            case theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta(args_delta=str(more))) if more:
                yield CallPiece(index=self._calls.setdefault(index, len(self._calls)), arguments=more)
            case _:
                pass


def _is_whole(response: theirs.ModelResponse, model: TheirModel) -> bool:
    """Say whether the provider said that its answer is whole."""
    if response.state != "complete" or response.finish_reason == "error":
        return False
    if response.finish_reason is None:
        return model.system in _WITHOUT_FINISH
    while isinstance(model, WrapperModel):
        model = model.wrapped
    if all(each.__name__ != "OpenAIChatModel" for each in type(model).__mro__):
        return True
    # A chat stream that ends without a reason is given one by pydantic-ai; only a real one is among the details.
    return response.finish_reason != "stop" or "finish_reason" in (response.provider_details or {})


def _parameters(model: TheirModel, request: Request) -> ModelRequestParameters:
    tools = [
        ToolDefinition(name=tool.name, parameters_json_schema=dict(tool.schema), description=tool.description)
        for tool in request.tools
    ]
    if request.output is None:
        return ModelRequestParameters(function_tools=tools)
    native = bool(model.profile.get("supports_json_schema_output"))
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if native else "prompted",
        output_object=OutputObjectDefinition(json_schema=dict(request.output), name="output"),
    )


def _settings(model: TheirModel, request: Request) -> ModelSettings:
    settings: dict[str, Any] = {name: request.settings[name] for name in sorted(request.settings)}
    if "max_retries" not in model.unsupported_settings:
        # Retries are durable and counted, so they are the agent's.
        settings.setdefault("max_retries", 0)
    return cast(ModelSettings, settings)


def _usage(told: Any) -> Usage:
    """Return what was used; pydantic-ai says nothing where it knows nothing, and nothing is unknown here."""
    if not told.input_tokens and not told.output_tokens:
        return Usage()
    return Usage(input=told.input_tokens, output=told.output_tokens, cached=told.cache_read_tokens)
