"""What is served, told in OpenAPI: made of the routes themselves, so that it is true."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.core import limits
from holdfast.server.endpoint import KEYS, Endpoint

_ERRORS: Final = {
    400: "what was given cannot be taken",
    401: "no token, or none that is known here",
    403: "the token, the host or the page does not allow it",
    404: "it is not here",
    406: "there is no such form of it",
    409: "it contradicts what is already there",
    410: "nobody waits for it any more",
    413: "the body is over the limit",
    415: "the body is not JSON",
    431: "the headers are over the limit",
    500: "something is damaged",
    503: "the store or the server cannot take it now",
}
_EVERY: Final = (400, 403, 431, 500, 503)
_REF: Final = "#/components/schemas/{name}"


class Failure(Struct, kw_only=True):
    """What went wrong, and what to do next; some have fields of their own."""

    code: str
    message: str
    hint: str


class Failed(Struct, kw_only=True):
    """The answer of whatever is refused."""

    error: Failure


def describe(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    kinds = {Failed, *(kind for each in endpoints for kind in _kinds(each))}
    ordered = sorted(kinds, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    known = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for each in endpoints:
        path = re.sub(r":path}", "}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": version, "description": "Durable runs of agents, over HTTP."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(endpoint: Endpoint) -> list[Any]:
    given: list[Any] = [endpoint.takes] if endpoint.takes is not None else []
    for kind in endpoint.gives.values():
        given += kind if isinstance(kind, list) else [kind] if isinstance(kind, type) else []
    return given


def _operation(endpoint: Endpoint, known: Mapping[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.answer.__module__.rpartition('.')[2]}_{endpoint.answer.__name__.strip('_')}",
        "summary": endpoint.does,
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint, known),
        "x-scope": endpoint.scope,
    }
    if endpoint.scope is not None:
        operation["security"] = [{"token": []}]
    if endpoint.takes is not None:
        required = any(field.required for field in msgspec.structs.fields(endpoint.takes))
        operation["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": known[endpoint.takes]}},
        }
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    text = {"type": "string"}
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {**text, "minLength": 1}}
        for name in re.findall(r"{(\w+)(?::path)?}", endpoint.path)
    ]
    if endpoint.query is not None:
        [_], components = msgspec.json.schema_components([endpoint.query])
        own = components[endpoint.query.__name__]["properties"]
        for name, schema in own.items():
            found.append({"name": name, "in": "query", "required": False, "schema": _inline(schema, components)})
    if endpoint.keyed:
        key = {**text, "minLength": 1, "maxLength": limits.KEY_BYTES}
        names = {"idempotency-key": "Idempotency-Key", "x-execution-id": "X-Execution-ID"}
        found += [{"name": names[name], "in": "header", "required": False, "schema": key} for name in KEYS]
    if any(isinstance(kind, tuple) and "text/event-stream" in kind for kind in endpoint.gives.values()):
        found.append({"name": "Last-Event-ID", "in": "header", "required": False, "schema": text})
    return found


def _inline(schema: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a query's field with what it refers to in its place."""
    made = {name: value for name, value in schema.items() if name not in ("anyOf", "$ref")}
    if "$ref" in schema:
        made |= components[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        made["anyOf"] = [_inline(each, components) for each in schema["anyOf"]]
    return made


def _responses(endpoint: Endpoint, known: Mapping[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in endpoint.gives.items():
        answer: dict[str, Any] = {"description": endpoint.does}
        if isinstance(kind, tuple):
            answer["content"] = {media: {"schema": {"type": "string"}} for media in kind}
        elif kind is not None:
            schema = {"anyOf": [known[each] for each in kind]} if isinstance(kind, list) else known[kind]
            answer["content"] = {"application/json": {"schema": schema}}
        responses[str(status)] = answer
    refuses = {*_EVERY, *endpoint.refuses, *([401] if endpoint.scope is not None else [])}
    for status in sorted(refuses - set(endpoint.gives)):
        content = {"application/json": {"schema": known[Failed]}}
        responses[str(status)] = {"description": _ERRORS[status], "content": content}
    return responses
