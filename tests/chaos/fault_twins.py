"""Broken twins of what speaks to providers, each of which the campaign of faults must catch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import anthropic

from holdfast.agent.model import ModelCut, Reply
from holdfast.agent.providers import blocks, chat, faults
from holdfast.agent.providers.chat import Assembly
from holdfast.core.message import ToolCall
from tests.chaos.faults import Trial
from tests.rigs.provider import Fault


@dataclass(frozen=True, slots=True)
class Twin:
    """A way to break it, a trial that catches it, and what the catch says."""

    broken: Callable[[], AbstractContextManager[Any]]
    trial: Trial
    says: str


@contextmanager
def _believing() -> Iterator[None]:
    """The end of a stream is taken for the end of an answer."""
    whole = Assembly.reply

    def reply(self: Assembly) -> Reply:
        self.done, self._finish = True, self._finish or "stop"
        return whole(self)

    with patch.object(Assembly, "reply", reply):
        yield


@contextmanager
def _half_calling() -> Iterator[None]:
    """Half a call is given to its tool."""

    def all_of_them(calls: Sequence[ToolCall], **_: Any) -> list[ToolCall]:
        return list(calls)

    with patch.object(chat, "whole_calls", all_of_them), patch.object(blocks, "whole_calls", all_of_them):
        yield


@contextmanager
def _forgetful() -> Iterator[None]:
    """What a lost attempt took is told to nobody."""
    made = ModelCut.__init__

    def without(self: ModelCut, message: str, **told: Any) -> None:
        made(self, message, **{**told, "usage": None})

    with patch.object(ModelCut, "__init__", without):
        yield


@contextmanager
def _retrying() -> Iterator[None]:
    """The SDK asks again by itself, and nobody counts it."""
    made = anthropic.AsyncAnthropic

    def stubborn(**given: Any) -> Any:
        return made(**{**given, "max_retries": 2})

    with patch.object(anthropic, "AsyncAnthropic", stubborn):
        yield


@contextmanager
def _deaf() -> Iterator[None]:
    """Being busy is taken for being cut: an attempt that was never made is charged."""

    def cut(status: int, body: bytes, headers: Mapping[str, str], *, model: str, key: str) -> ModelCut:
        return ModelCut(f"{model} answered {status}", status=status)

    with patch.object(faults, "by_status", cut):
        yield


TWINS: Final[Mapping[str, Twin]] = {
    "believing": Twin(_believing, Trial("openai", "fifty", Fault(cut="end", after=20)), "the result is"),
    "half_calling": Twin(_half_calling, Trial("anthropic", "calling", Fault(flaw="half_call")), "the journal says"),
    "forgetful": Twin(_forgetful, Trial("anthropic", "fifty", Fault(cut="fin", after=20)), "the lost attempt's usage"),
    "retrying": Twin(_retrying, Trial("anthropic", "fifty", Fault(status=500, created=True)), "attempts"),
    "deaf": Twin(_deaf, Trial("openai", "fifty", Fault(status=429, headers={"retry-after-ms": "10"})), "model_cut"),
}
