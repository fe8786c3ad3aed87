"""Holdfast: a durable runtime for AI agents."""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast import events
from holdfast.agent.agent import Agent
from holdfast.agent.tool import tool
from holdfast.client.conversation import Conversation
from holdfast.client.protocol import Client, RunInfo
from holdfast.client.run import Run
from holdfast.core.budget import Budget
from holdfast.core.errors import (
    BudgetExceeded,
    Conflict,
    Diverged,
    HoldfastError,
    InDoubt,
    NotFound,
    RunError,
    StepError,
    ToolError,
)
from holdfast.core.limit import Limit
from holdfast.core.release import RELEASE
from holdfast.core.retry import Retry
from holdfast.core.signal import Decision, Signal
from holdfast.core.status import NOT_DONE, Effect, NotDone, Status
from holdfast.engine.app import App
from holdfast.engine.context import Context
from holdfast.engine.function import Durable, durable
from holdfast.engine.policy import step
from holdfast.engine.step import Step
from holdfast.engine.verb import Child
from holdfast.runtime import Runtime, open, run
from holdfast.store.protocol import Transaction
from holdfast.stream.event import Event

_LATER = ("checkpoint", "harness", "mcp", "models", "server", "testing")
"""What programs do not need, they do not load."""

if TYPE_CHECKING:
    from holdfast import checkpoint as checkpoint
    from holdfast import harness as harness
    from holdfast import mcp as mcp
    from holdfast import models as models
    from holdfast import server as server
    from holdfast import testing as testing
else:

    def __getattr__(name: str) -> object:
        if name in _LATER:
            return import_module(f"holdfast.{name}")
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


__version__ = RELEASE

__all__ = [
    "NOT_DONE",
    "Agent",
    "App",
    "Budget",
    "BudgetExceeded",
    "Child",
    "Client",
    "Conflict",
    "Context",
    "Conversation",
    "Decision",
    "Diverged",
    "Durable",
    "Effect",
    "Event",
    "HoldfastError",
    "InDoubt",
    "Limit",
    "NotDone",
    "NotFound",
    "Retry",
    "Run",
    "RunError",
    "RunInfo",
    "Runtime",
    "Signal",
    "Status",
    "Step",
    "StepError",
    "ToolError",
    "Transaction",
    "durable",
    "events",
    "open",
    "run",
    "step",
    "tool",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", *_LATER])
