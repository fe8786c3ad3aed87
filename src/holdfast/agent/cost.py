"""What a generation may cost before it is made: an estimate that is set aside, by a rule that anybody can work out."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.agent.model import Request
from holdfast.core.budget import CALLS, TOKENS, USD
from holdfast.core.errors import UnknownPrice
from holdfast.core.message import Message, Usage

BYTES_PER_TOKEN: Final = 3
"""Of the request as JSON: fewer than text has, since tool schemas and other scripts have fewer."""
ANSWER_TOKENS: Final = 8192
"""How long an answer is taken to be at most where the settings do not say: as long as a provider is told then."""
_MOST: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Priced(Protocol):
    """Whoever is paid for generations: a model or a harness. One that knows its price has `cost_of`."""

    @property
    def name(self) -> str:
        """What is told of it."""
        ...


class Cost:
    """What one generation is estimated at; worked out when it is asked for, and once."""

    def __init__(self, model: Priced, request: Callable[[], Request]) -> None:
        self._model, self._request = model, request

    @cached_property
    def _parts(self) -> tuple[int, int]:
        request = self._request()
        prompt = -(-request_bytes(request) // BYTES_PER_TOKEN)
        return prompt, answer_tokens(request.settings)

    @property
    def tokens(self) -> int:
        """How many tokens it takes at most: the prompt's bytes divided by three, and the longest answer."""
        return sum(self._parts)

    def draws(self, *, priced: bool) -> Mapping[str, int]:
        """Return what is set aside for an attempt, by channel; its price only where a budget limits that.

        Raises:
            UnknownPrice: nobody knows the model's price, and the setting does not allow that.
        """
        draws = {CALLS: 1, TOKENS: self.tokens}
        if priced:
            prompt, answer = self._parts
            cost = price_of(self._model, Usage(input=prompt, output=answer))
            if cost is None and os.environ.get("HOLDFAST_UNPRICED") != "allow":
                raise UnknownPrice(model=self._model.name)
            draws[USD] = cost or 0
        return draws


def request_bytes(request: Request) -> int:
    """Return how long a request is as JSON, without writing again what was said before."""
    rest = len(msgspec.json.encode(replace(request, messages=())))
    return rest + messages_bytes(request.messages) - 2


def messages_bytes(messages: Sequence[Message]) -> int:
    """Return how long messages are as a JSON array."""
    return sum(message.json_bytes for message in messages) + max(len(messages) - 1, 0) + 2


def answer_tokens(settings: Mapping[str, Any]) -> int:
    """Return how many tokens an answer has at most."""
    given = next((settings[name] for name in _MOST if isinstance(settings.get(name), int)), ANSWER_TOKENS)
    return max(1, int(given))


def price_of(model: Priced, usage: Usage) -> int | None:
    """Return what so much costs, in nano-USD; None where nobody knows. A model that knows has `cost_of`."""
    cost_of = getattr(model, "cost_of", None)
    cost = cost_of(usage) if cost_of is not None else None
    return cost if isinstance(cost, int) else None
