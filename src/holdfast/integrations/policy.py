"""What is said of a framework's tool: how it is performed, and what its model is told where nobody knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict

import holdfast as hf
from holdfast.core.errors import InvalidInput
from holdfast.integrations.relay import Perform, Relay

_IN_DOUBT: Final = ("tell", "raise", "wait")


class ToolPolicy(TypedDict, total=False):
    """How a tool is performed; the words are those of `ctx.step`, and what is not said is `once` and `tell`.

    Of a call that may or may not have happened the model is told so (`tell`), or the run fails (`raise`), or waits for
    a person who gives the result (`wait`).
    """

    effect: hf.Effect | Literal["repeat", "keyed", "once"]
    in_doubt: Literal["tell", "raise", "wait"]
    retry: hf.Retry | Mapping[str, Any]
    timeout: float | timedelta
    limit: hf.Limit
    not_performed: tuple[type[BaseException], ...]


class Untold(Exception):
    """Nobody knows whether a call happened, and its model is to be told just that, in these words."""


@dataclass(frozen=True, slots=True)
class ToolStep:
    """A tool's policy, read."""

    options: Mapping[str, Any]
    tells: bool

    @classmethod
    def of(cls, said: Any, tool: str) -> "ToolStep":
        """Return what is said of a tool.

        Raises:
            InvalidInput: some of it means nothing.
        """
        known = ToolPolicy.__annotations__
        if not isinstance(said, Mapping) or not set(said) <= set(known):
            raise InvalidInput(f"what is said of tool {tool!r} is a dict of {', '.join(known)}, not {said!r}")
        options: dict[str, Any] = {"effect": hf.Effect.ONCE, **said}
        in_doubt = options.pop("in_doubt", "tell")
        if in_doubt not in _IN_DOUBT:
            raise InvalidInput(f"in_doubt of tool {tool!r} is one of {', '.join(_IN_DOUBT)}, not {in_doubt!r}")
        if in_doubt == "wait":
            options["in_doubt"] = "wait"
        if isinstance(options.get("retry"), Mapping):
            options["retry"] = hf.Retry(**options["retry"])
        return cls(options, tells=in_doubt != "raise")

    async def call(self, relay: Relay, name: str, perform: Perform, call_id: str | None) -> Any:
        """Call a tool as a step, and return what it came to: now, when it was called, or by a person.

        Raises:
            Untold: it may or may not have happened.
            StepError: it failed.
        """
        try:
            return await relay.step(name, perform, call_id, place=call_id, **self.options)
        except hf.InDoubt as doubt:
            if not self.tells:
                raise
            raise Untold(
                f"The outcome is unknown ({doubt.message}): it may or may not have happened. It was not tried again. "
                "Find out before you call it again, or say that it is not known."
            ) from doubt
