"""What an agent asks of a model, and what comes back: one small protocol."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from holdfast.core.errors import HoldfastError
from holdfast.core.message import Message, Usage


class ToolSpec(Struct, frozen=True):
    """A tool as the model is told of it; `schema` is the JSON Schema of its arguments, an object."""

    name: str
    description: str
    schema: Mapping[str, Any]


class Request(Struct, frozen=True):
    """Everything that one generation is made from; the same request has the same bytes, whoever builds it."""

    instructions: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    output: Mapping[str, Any] | None = None
    """The JSON Schema that the answer shall have; None for free text."""
    settings: Mapping[str, Any] = {}
    """Of the provider: temperature, max_tokens and so on, sent as they are."""
    key: str = ""
    """The idempotency key of the attempt, for providers that take one."""


class TextPiece(Struct, frozen=True, tag_field="kind", tag="text"):
    """Some more of what is said."""

    text: str


class ReasoningPiece(Struct, frozen=True, tag_field="kind", tag="reasoning"):
    """Some more of what is thought."""

    text: str


class CallPiece(Struct, frozen=True, tag_field="kind", tag="call"):
    """Some more of the `index`-th call: its id and name come first, then its arguments bit by bit."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Piece = TextPiece | ReasoningPiece | CallPiece
Say = Callable[[Piece], None]
"""Takes each piece as it comes: a preview, of which nothing is kept once the reply is."""


class Reply(Struct, frozen=True):
    """A whole generation; `stop` is `end`, `calls`, `length` or `refused`."""

    message: Message
    usage: Usage = Usage()
    stop: str = "end"
    model: str = ""
    """Which model answered, as the provider names it."""


class Model(Protocol):
    """Whoever writes the next message."""

    @property
    def name(self) -> str:
        """Which model it is, with its provider: `openai:gpt-5-mini`."""

    @property
    def lane(self) -> str:
        """Whose rate limit its requests count against: provider, address and a digest of the key, never the key."""

    async def ask(self, request: Request, say: Say) -> Reply:
        """Return the whole reply, once the provider said that it is whole; tell its pieces as they come.

        Raises:
            ModelBusy: come back later; nothing was generated.
            ModelCut: the stream ended, stalled or broke before its end.
            ModelRefused: the request will never be answered as it is.
        """


class ModelError(HoldfastError):
    """A model did not answer."""

    code = "model_error"
    hint = "See what the provider says; the run goes on from its last entry when it is retried."

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | datetime | None = None,
        usage: Usage | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """When to come back, as the provider said it: seconds or a date."""
        self.usage = usage
        """What the failed attempt took anyway, as far as it is known."""
        self.status = status


class ModelBusy(ModelError):
    """The provider is overloaded or its rate limit is reached: nothing was generated."""

    code = "model_busy"
    hint = "It is asked again after what the provider says, by the agent's retry policy."


class ModelCut(ModelError):
    """A generation broke off before its end; what was said of it is a preview and no message."""

    code = "model_cut"
    hint = "It is asked again, and the lost attempt is charged."


class ModelRefused(ModelError):
    """The provider refuses the request as it is: a wrong key, an unknown model, a request too long."""

    code = "model_refused"
    hint = "Asking again will not help: mend the key, the model's name or the request, then retry the run."
