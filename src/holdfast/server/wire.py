"""What goes over the wire: JSON for one thing, and a line or an event for each of many."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast.client.wire import event_form
from holdfast.core.errors import HoldfastError
from holdfast.server.errors import error_form, status_of
from holdfast.stream.event import Event

SSE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
FAILED: Final = "stream.failed"
"""The type of the last line of a stream that cannot go on; it has no id, and a reconnect is told why."""
_BREAKS: Final = (b"\n", b"\r")


def encode(value: Any) -> bytes:
    """Return a value as one line of JSON."""
    body = msgspec.json.encode(value, enc_hook=str)
    if any(each in body for each in _BREAKS):
        # A stored body that somebody else wrote may be laid out; on a line it may not.
        body = msgspec.json.encode(msgspec.json.decode(body))
    return body


class Line:
    """One message of a stream: its type, its JSON, and its id if a reader may continue from it."""

    __slots__ = ("form", "id", "type")

    def __init__(self, type: str, form: Mapping[str, Any], id: str | None = None) -> None:
        self.type, self.form, self.id = type, form, id


def line_of(event: Event) -> Line:
    """Return an event as a message."""
    form = event_form(event)
    return Line(form["type"], form, form["id"])


def failure(error: HoldfastError) -> Line:
    """Return the message that ends a stream which cannot go on."""
    return Line(FAILED, {"type": FAILED, **error_form(error)})


def as_sse(line: Line) -> bytes:
    """Return a message as browsers' EventSource reads it."""
    name = f"id: {line.id}\nevent: {line.type}" if line.id else f"event: {line.type}"
    return name.encode() + b"\ndata: " + encode(line.form) + b"\n\n"


def as_ndjson(line: Line) -> bytes:
    """Return a message as one line of JSON."""
    return encode(line.form) + b"\n"


Write = Callable[[Line], bytes]
WRITERS: Final[Mapping[str, Write]] = {SSE: as_sse, NDJSON: as_ndjson}
ALIVE: Final[Mapping[str, bytes]] = {SSE: b": alive\n\n", NDJSON: b"\n"}
"""What keeps a connection open that has nothing to say: a comment, and an empty line."""


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(encode(value), status, headers, media_type="application/json")


def as_error(error: HoldfastError) -> Response:
    """Return the answer that tells of an error."""
    status = status_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "1"} if status == 503 else {}
    return as_json(error_form(error), status, headers)
