"""Starting runs by name: what whoever serves a program may ask of it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw, Struct

from holdfast.core.budget import Budget
from holdfast.core.ids import RunId

if TYPE_CHECKING:
    from holdfast.client.conversation import Conversation


class ParameterInfo(Struct, frozen=True, kw_only=True):
    """One argument of a durable function."""

    name: str
    type: str
    """As it is written in the program; empty where nothing is."""
    required: bool


class FunctionInfo(Struct, frozen=True, kw_only=True):
    """A durable function that runs can be started of."""

    name: str
    version: str
    parameters: Sequence[ParameterInfo]


class Begun(Struct, frozen=True, kw_only=True):
    """A run that was asked for: begun by this call, or found by its key."""

    run: RunId
    created: bool


class Starter(Protocol):
    """The functions of a program, by name."""

    def functions(self) -> Sequence[FunctionInfo]:
        """Return every function that a run can be started of, by name."""
        ...

    def conversation(self, conversation: str, name: str | None) -> "Conversation[Any]":
        """Return a durable chat with a function of one text; with none, it can be read only.

        Raises:
            NotFound: there is no such function.
        """
        ...

    async def start(
        self,
        name: str,
        input: Raw | bytes | None,
        *,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        budget: Budget | None = None,
        conversation: str | None = None,
    ) -> Begun:
        """Start a run of a function, with its arguments as JSON: an object of them, or the one value; None for no
        argument at all.

        Raises:
            NotFound: there is no such function.
            InvalidInput: it does not take these arguments.
            Conflict: the key was used with another function or input.
        """
        ...
