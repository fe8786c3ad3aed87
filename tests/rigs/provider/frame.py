"""Events of a stream, each with what it carries, so that a stream can be cut at a token."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tests.rigs.provider.turn import Answer

Carries = Literal["frame", "token", "call", "end"]


@dataclass(frozen=True)
class Frame:
    """One event as bytes; `token` carries a token of text, `call` a part of a call, and `end` ends the stream."""

    bytes: bytes
    carries: Carries = "frame"


class Failing(Protocol):
    """Whatever can fail within a stream."""

    def error_frame(self) -> bytes:
        """Return the event of a failure within a stream."""


class Dialect(Failing, Protocol):
    """A wire format whose generations are not kept."""

    def frames(self, answer: Answer, model: str, *, half_call: bool) -> Sequence[Frame]:
        """Return the events of an answer, in order."""

    def whole(self, answer: Answer, model: str) -> Mapping[str, Any]:
        """Return an answer that is not streamed."""

    def error(self, status: int) -> Mapping[str, Any]:
        """Return the body of a refusal."""


def event(data: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """Return a server-sent event."""
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def halves(text: str) -> tuple[str, str]:
    """Return a text in two parts."""
    return text[: len(text) // 2], text[len(text) // 2 :]


KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error", 500: "api_error",
         503: "overloaded_error", 529: "overloaded_error"}  # fmt: skip
