"""Chat turns over HTTP: a message in, and a stream that tells how its run begins, goes on and ends."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client.conversation import Conversation, IfBusy
from holdfast.client.protocol import Client, RunSummary
from holdfast.client.run import Run
from holdfast.core import limits
from holdfast.core.cursor import check_form
from holdfast.core.errors import HoldfastError, InvalidInput, NotFound
from holdfast.core.ids import RunId
from holdfast.core.message import Part
from holdfast.core.status import Status
from holdfast.server.auth import Scope
from holdfast.server.endpoint import Call, Endpoint, key_of
from holdfast.server.sse import Streams, form_of
from holdfast.server.wire import NDJSON, SSE, Line, as_error, as_json, line_of
from holdfast.stream.event import Event

STARTED: Final = "session.run.started"
COMPLETED: Final = "session.run.completed"
FAILED: Final = "session.run.failed"
_LOOK_SECONDS: Final = 5.0
"""How often a turn that says nothing is looked at."""


class NewTurn(Struct, kw_only=True, forbid_unknown_fields=True):
    """Something to say in a conversation."""

    message: str
    agent: str | None = None
    """Who answers; may be left out where there is only one."""
    key: str | None = None
    """The turn's own key, unless a header has it: the same key joins the same turn."""
    if_busy: Literal["queue", "reject", "steer", "interrupt"] = "queue"
    by: str | None = None


class After(Struct, kw_only=True, forbid_unknown_fields=True):
    """From where on a turn is told."""

    after: str | None = None
    """The id of the last event that the reader has; the header Last-Event-ID comes before it."""


class Spoken(Struct, kw_only=True):
    """A message: who said what. What only its provider can read of it is left out."""

    role: str
    parts: Sequence[Part]


class Talk(Struct, kw_only=True):
    """A conversation: its turns, and everything that was said."""

    id: str
    metadata: dict[str, Any]
    turns: Sequence[RunSummary]
    messages: Sequence[Spoken]


class Converses(Protocol):
    """A runtime, as far as chat turns need one."""

    @property
    def client(self) -> Client:
        """Every operation that anyone may ask for."""
        ...

    def conversation(self, conversation: str, agent: Any) -> Conversation[Any]:
        """Return a durable chat with an agent."""
        ...


async def take_turn(call: Call) -> Response:
    """POST /v1/conversations/{conversation}/turns"""
    body, asked = await call.body(NewTurn), call.query(After)
    if call.key is not None and body.key not in (None, call.key):
        raise InvalidInput("the key in the body and the one in the header differ: give one of them")
    talk = call.starter.conversation(call.path("conversation"), body.agent or _only_one(call))
    form = form_of(call.request.headers.get("accept", ""), NDJSON)
    key = call.key if call.key is not None else body.key
    after = call.request.headers.get("last-event-id") or asked.after
    _check_before(call.site.streams, after)
    run = await talk.send(body.message, key=key, if_busy=body.if_busy, by=body.by)
    await call.client.is_over(run.id, after=after)  # refuses a cursor before there is a stream
    return call.site.streams.answer(envelope(call.client, run, talk.id, after), form)


def _check_before(streams: Streams, after: str | None) -> None:
    """Refuse what could not be answered before anything is said: a turn is not begun for an error."""
    streams.check()
    if after:
        check_form(after)


def _only_one(call: Call) -> str:
    names = [each.name for each in call.starter.functions()]
    if len(names) != 1:
        error = InvalidInput('say who answers: "agent"')
        error.hint = f"There is: {', '.join(names)}."
        raise error
    return names[0]


async def get(call: Call) -> Response:
    """GET /v1/conversations/{conversation}"""
    talk = call.starter.conversation(call.path("conversation"), None)
    turns, metadata = await talk.turns(), await talk.metadata()
    if not turns and not metadata:
        raise NotFound(f"conversation {talk.id[:100]!r}")
    said = [Spoken(role=message.role, parts=message.parts) for message in await talk.history()]
    return as_json(Talk(id=talk.id, metadata=metadata, turns=turns, messages=said))


async def envelope(
    client: Client, run: Run[Any], conversation: str, after: str | None = None
) -> AsyncGenerator[Line, None]:  # fmt: skip
    """Yield a turn: that it is under way, its events after a cursor, and how it ended.

    The first and the last message are made of what is stored, so that whoever comes again is told the same.
    """
    about = {"run": run.id, "conversation": conversation}
    yield Line(STARTED, {"type": STARTED, **about})
    async with aclosing(_told(client, run.id, after)) as told:
        async for event in told:
            yield line_of(event)
    info = await client.info(run.id)
    ending: dict[str, Any] = {**about, "status": info.status, "result": info.result}
    if info.status is Status.COMPLETED:
        yield Line(COMPLETED, {"type": COMPLETED, **ending})
    else:
        yield Line(FAILED, {"type": FAILED, **ending, "reason": info.reason, "error": info.error})


async def _told(client: Client, run: RunId, after: str | None) -> AsyncGenerator[Event, None]:
    """Yield a turn's events until it has ended, or was set aside: the conversation goes on without it then."""
    feed: Any = client.events(run, after=after)
    async with aclosing(feed):
        while True:
            coming = asyncio.ensure_future(anext(feed, None))
            try:
                while not (await asyncio.wait({coming}, timeout=_LOOK_SECONDS))[0]:
                    if (await client.info(run)).status is Status.QUARANTINED:
                        return
                event = coming.result()
            finally:
                coming.cancel()
                await asyncio.wait({coming})
            if event is None:
                return
            yield event


async def handle_chat_turn(
    runtime: Converses,
    agent: Any,
    request: Request,
    *,
    conversation: str,
    message: str,
    key: str | None = None,
    if_busy: IfBusy = "queue",
    by: str | None = None,
) -> Response:
    """Answer a request of your own Starlette or FastAPI application with a chat turn, as NDJSON or SSE.

    The turn is a durable run: a client that leaves cancels nothing, and one that comes again with the same key, its own
    or that of `Idempotency-Key` or `X-Execution-ID`, joins the same turn after `Last-Event-ID`. Who may ask is for your
    application to say. What is refused is an answer in JSON.
    """
    try:
        form = form_of(request.headers.get("accept", ""), NDJSON)
        talk = runtime.conversation(conversation, agent)
        said = key if key is not None else key_of(request)
        after = request.headers.get("last-event-id")
        _check_before(_STREAMS, after)
        run = await talk.send(message, key=said, if_busy=if_busy, by=by)
        await runtime.client.is_over(run.id, after=after)
        return _STREAMS.answer(envelope(runtime.client, run, talk.id, after), form)
    except HoldfastError as error:
        return as_error(error)


_STREAMS: Final = Streams(slow_seconds=limits.SLOW_SECONDS, alive_seconds=limits.ALIVE_SECONDS)
"""Those of applications that are not ours, which end with their server."""
ROUTES = (
    Endpoint(
        "POST", "/v1/conversations/{conversation}/turns", Scope.START, take_turn,
        "Say something in a conversation, and send how its turn begins, goes on and ends; the same key joins it again.",
        {200: (NDJSON, SSE)}, takes=NewTurn, query=After, keyed=True, refuses=(404, 406, 409, 413, 415),
    ),
    Endpoint(
        "GET", "/v1/conversations/{conversation}", Scope.READ, get,
        "Tell what was said in a conversation, and by which turns.", {200: Talk}, refuses=(404,),
    ),
)  # fmt: skip
