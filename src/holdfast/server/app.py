"""The server as an ASGI application: its routes, behind one gate."""

import os
import traceback
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from holdfast.core import limits
from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.release import RELEASE
from holdfast.core.retry import checked_seconds
from holdfast.server import about, chat, questions, runs, verbs
from holdfast.server.auth import Gate, Scope, Tokens
from holdfast.server.endpoint import Call, Endpoint, Served, Site
from holdfast.server.errors import HeadersTooLarge, NoRoute, WrongMethod
from holdfast.server.openapi import describe
from holdfast.server.sse import Streams
from holdfast.server.wire import as_error, as_json

_log: Final = structlog.get_logger("holdfast.server")
SAFE: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""What every answer says, so that a browser does nothing with it that nobody meant."""
_ASKED_HEADERS: Final = "Authorization, Content-Type, Idempotency-Key, X-Execution-ID, Last-Event-ID"


async def _openapi(call: Call) -> Response:
    """GET /openapi.json"""
    return as_json(describe(ENDPOINTS, RELEASE))


ENDPOINTS: Final[Sequence[Endpoint]] = (
    *runs.ROUTES,
    *verbs.ROUTES,
    *questions.ROUTES,
    *chat.ROUTES,
    *about.ROUTES,
    Endpoint("GET", "/openapi.json", Scope.READ, _openapi, "Tell of every route, in OpenAPI.", {200: dict}),
)
"""Everything that is served."""


def create_app(
    runtime: Served,
    *,
    token: Tokens | None = None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    streams: int = limits.OPEN_STREAMS,
    slow_seconds: float = limits.SLOW_SECONDS,
    alive_seconds: float = limits.ALIVE_SECONDS,
) -> Starlette:
    """Return an ASGI application that serves an open runtime; it may be mounted in another one.

    `token` is the one that requests must carry, with every scope, or each token with its own; without it,
    HOLDFAST_TOKEN. The server answers for loopback and for `hosts`, and pages of `origins` may ask it. A reader that
    takes nothing for `slow_seconds` is cut.

    Raises:
        InvalidInput: there is no token, or one that is too short.
    """
    if not hasattr(runtime, "starter"):
        raise InvalidInput(f"create_app wants an open runtime, as `async with hf.open(...)` gives it, not {runtime!r}")
    given = token if token is not None else os.environ.get("HOLDFAST_TOKEN") or {}
    if isinstance(streams, bool) or not isinstance(streams, int) or streams < 1:
        raise InvalidInput(f"streams= is a whole number of at least 1, not {streams!r}")
    bounded = Streams(
        most=streams,
        slow_seconds=checked_seconds("slow_seconds=", slow_seconds),
        alive_seconds=checked_seconds("alive_seconds=", alive_seconds),
    )
    site = Site(runtime, Gate.of(given, hosts=hosts, origins=origins), bounded)
    app = Starlette(
        routes=_routes(site),
        middleware=[Middleware(Guard, gate=site.gate)],
        exception_handlers={HTTPException: _refuse, HoldfastError: _tell},
    )
    app.state.streams = bounded
    return app


def _routes(site: Site) -> list[Route]:
    return [Route(each.path, _served(each, site), methods=[each.method]) for each in ENDPOINTS]


def _served(endpoint: Endpoint, site: Site) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        try:
            return await endpoint.call(request, site)
        except HoldfastError as error:
            return as_error(error)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            # As text, since a log that shows every local shows tokens and payloads.
            _log.error("a request failed", route=endpoint.path, error="".join(traceback.format_exception(error)))
            failed = HoldfastError(f"the server failed at this: {type(error).__name__}")
            failed.hint = "The server's log tells more."
            return as_error(failed)

    return serve


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        answer = as_error(WrongMethod(f"{request.url.path[:200]} does not take {request.method}"))
        answer.headers.update(error.headers or {})
        return answer
    return as_error(NoRoute(f"nothing is served at {request.url.path[:200]}"))


async def _tell(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return as_error(error)


class Guard:
    """Looks at every request before anybody else: its host, its origin, its size; and says what a browser may do."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        allowed = origin if origin in self._gate.origins else None

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                _mark(MutableHeaders(scope=message), allowed)
            await send(message)

        try:
            _check_size(scope)
            self._gate.check_place(headers, scope["scheme"])
        except HoldfastError as error:
            await as_error(error)(scope, receive, sent)
            return
        if scope["method"] == "OPTIONS" and allowed is not None and "access-control-request-method" in headers:
            said = {"Access-Control-Allow-Methods": "GET, POST, DELETE", "Access-Control-Allow-Headers": _ASKED_HEADERS}
            await Response(status_code=204, headers=said)(scope, receive, sent)
            return
        await self._app(scope, receive, sent)


def _mark(headers: MutableHeaders, allowed: str | None) -> None:
    """Add what every answer says."""
    headers.update(SAFE)
    headers.setdefault("Cache-Control", "no-store")
    if allowed is not None:
        headers["Access-Control-Allow-Origin"] = allowed
        headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        headers.add_vary_header("Origin")


def _check_size(scope: Connection) -> None:
    """Refuse headers and an address over the limit; a server in front may be more generous.

    Raises:
        HeadersTooLarge: they are.
    """
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    address = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    most = limits.HEADER_BYTES
    for what, size in (("headers", headers), ("address", address)):
        if size > most:
            raise HeadersTooLarge(f"the request's {what} came to {size:,} bytes; the limit is {most:,}")
