"""The routes that tell what is here, for people and for machines."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast.client.protocol import LimitInfo, WorkerInfo
from holdfast.client.starting import FunctionInfo
from holdfast.server.auth import Scope
from holdfast.server.endpoint import Call, Endpoint
from holdfast.server.errors import Unauthorized
from holdfast.server.wire import as_json

_HOME: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast</title></head><body>
<h1>Holdfast</h1>
<ul>
<li><a href="v1/runs">runs</a></li>
<li><a href="v1/questions">questions</a></li>
<li><a href="v1/agents">agents</a></li>
<li><a href="v1/workers">workers</a></li>
<li><a href="v1/limits">limits</a></li>
<li><a href="openapi.json">every route</a></li>
</ul>
</body></html>
"""


class Agents(Struct, kw_only=True):
    """What runs can be started of here."""

    agents: Sequence[FunctionInfo]


class Workers(Struct, kw_only=True):
    """Every worker that has not said goodbye, the dead included."""

    workers: Sequence[WorkerInfo]


class Limits(Struct, kw_only=True):
    """The limits that steps share, and how full they are."""

    limits: Sequence[LimitInfo]


class Health(Struct, kw_only=True):
    """That the server answers."""

    ok: bool = True


async def agents(call: Call) -> Response:
    """GET /v1/agents"""
    return as_json(Agents(agents=call.starter.functions()))


async def workers(call: Call) -> Response:
    """GET /v1/workers"""
    return as_json(Workers(workers=await call.client.workers()))


async def list_limits(call: Call) -> Response:
    """GET /v1/limits"""
    return as_json(Limits(limits=await call.client.limits()))


async def healthz(call: Call) -> Response:
    """GET /healthz"""
    return as_json(Health())


async def readyz(call: Call) -> Response:
    """GET /readyz"""
    await call.client.runs(limit=1)
    return as_json(Health())


async def home(call: Call) -> Response:
    """GET /: turn the token of a link into a cookie, so that it does not stay in the address."""
    gate = call.site.gate
    found = gate.token_of(call.request)
    if found is None:
        raise Unauthorized("a token of this server is needed")
    if "token" not in call.request.query_params:
        return HTMLResponse(_HOME)
    answer = RedirectResponse(call.request.url.remove_query_params("token").path, 303)
    name, value = gate.cookie(found)
    answer.set_cookie(name, value, httponly=True, samesite="strict", secure=call.request.url.scheme == "https")
    return answer


ROUTES = (
    Endpoint("GET", "/v1/agents", Scope.READ, agents, "List what runs can be started of here.", {200: Agents}),
    Endpoint("GET", "/v1/workers", Scope.READ, workers, "List the workers of the store.", {200: Workers}),
    Endpoint("GET", "/v1/limits", Scope.READ, list_limits, "List the limits that steps share.", {200: Limits}),
    Endpoint("GET", "/healthz", None, healthz, "Say that the server answers.", {200: Health}),
    Endpoint("GET", "/readyz", None, readyz, "Say that the store answers too.", {200: Health}),
    Endpoint(
        "GET", "/", None, home, "Show what is here, and turn the token of a link into a cookie.",
        {200: ("text/html",), 303: None}, refuses=(401,),
    ),
)  # fmt: skip
