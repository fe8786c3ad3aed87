"""Events as JSON: the form that the command line and the server share."""

from typing import Any, assert_never

from msgspec import Raw
from msgspec.structs import replace

from holdfast.client.standing import as_time
from holdfast.core.entry import Entry, Unknown, encode_body
from holdfast.stream.event import Chunk, Event, PreviewReset


def event_form(event: Event) -> dict[str, Any]:
    """Return an event as `{"id", "run", "seq", "type", "v", "at", "data"}`, to be encoded by msgspec.

    An entry's `data` is its stored body. It is null for an entry that this version cannot read.
    """
    match event:
        case Unknown():
            return _form(event, event.kind, event.v, None)
        case Entry():
            body = encode_body(replace(event, id="", run="", seq=0, at=0))
            return _form(event, event.type, event.version, Raw(body))
        case Chunk():
            data = {"step": event.step, "attempt": event.attempt, "offset": event.offset, "value": event.raw}
            return _form(event, event.type, 1, data)
        case PreviewReset():
            return {"id": None, "run": event.run, "seq": None, "type": event.type, "v": 1, "at": None, "data": None}
        case _:
            assert_never(event)


def _form(event: Entry | Chunk, type: str, version: int, data: Any) -> dict[str, Any]:
    return {
        "id": event.id, "run": event.run, "seq": event.seq, "type": type, "v": version, "at": as_time(event.at),
        "data": data,
    }  # fmt: skip
