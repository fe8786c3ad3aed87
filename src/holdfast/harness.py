"""Harnesses to give to an agent, what they are asked and report, and how to write one of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from holdfast.agent.harness import (
    Ask,
    CursorInvalid,
    Ended,
    Event,
    Harness,
    HarnessFailed,
    HarnessIncomplete,
    HarnessLimit,
    HarnessMismatch,
    Known,
    Rests,
    Session,
    Start,
    Told,
)
from holdfast.core.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.agent.harnesses.coding.cli import Cli, Heard, Named, Over, Spoke, Took
    from holdfast.agent.harnesses.coding.harness import ClaudeCode, Codex, Coding
    from holdfast.agent.harnesses.gemini import GeminiInteractions
    from holdfast.agent.harnesses.openai import OpenAIResponses
    from holdfast.agent.harnesses.remote import Remote

__all__ = [
    "Ask",
    "ClaudeCode",
    "Cli",
    "Codex",
    "Coding",
    "CursorInvalid",
    "Ended",
    "Event",
    "GeminiInteractions",
    "Harness",
    "HarnessFailed",
    "HarnessIncomplete",
    "HarnessLimit",
    "HarnessMismatch",
    "Heard",
    "Known",
    "Named",
    "OpenAIResponses",
    "Over",
    "Remote",
    "Rests",
    "Session",
    "Spoke",
    "Start",
    "Told",
    "Took",
]
_LAZY: Final = {
    "ClaudeCode": ("coding.harness", ""),
    "Cli": ("coding.cli", ""),
    "Codex": ("coding.harness", ""),
    "Coding": ("coding.harness", ""),
    "Heard": ("coding.cli", ""),
    "Named": ("coding.cli", ""),
    "Over": ("coding.cli", ""),
    "GeminiInteractions": ("gemini", ""),
    "OpenAIResponses": ("openai", ""),
    "Remote": ("remote", ""),
    "Spoke": ("coding.cli", ""),
    "Took": ("coding.cli", ""),
}
"""Where each harness is, and the extra that it needs; what a program does not use, it does not load."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'holdfast.harness' has no attribute {name!r}")
    module, extra = _LAZY[name]
    try:
        return getattr(import_module(f"holdfast.agent.harnesses.{module}"), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("holdfast"):
            raise
        raise InvalidInput(
            f"harness.{name} needs the package {error.name}; install it with: pip install 'holdfast[{extra}]'"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
