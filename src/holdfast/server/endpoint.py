"""One route: what it takes, what it gives, who may ask, and how a request becomes a call of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client.protocol import Client
from holdfast.client.starting import Starter
from holdfast.core import limits
from holdfast.core.codec import refuse_deep
from holdfast.core.errors import InvalidInput, PayloadTooLarge
from holdfast.core.ids import RunId, checked_key, run_id
from holdfast.server.auth import Gate, Scope
from holdfast.server.errors import NotJson
from holdfast.server.sse import Streams

KEYS: Final = ("idempotency-key", "x-execution-id")
"""The headers that may carry the caller's key."""
_DEPTH: Final = limits.NESTING + 4
"""A payload may nest so deep, and stands in a body."""
T = TypeVar("T", bound=Struct)


class Served(Protocol):
    """What a server serves: an open runtime."""

    @property
    def client(self) -> Client:
        """Every operation that anyone may ask for."""
        ...

    @property
    def starter(self) -> Starter:
        """The functions that runs can be started of."""
        ...


@dataclass(frozen=True)
class Site:
    """What stays the same for the life of a server."""

    served: Served
    gate: Gate
    streams: Streams


@dataclass(frozen=True)
class Call:
    """One request, read and let through."""

    request: Request
    site: Site
    key: str | None = None

    @property
    def client(self) -> Client:
        """Every operation that anyone may ask for."""
        return self.site.served.client

    @property
    def starter(self) -> Starter:
        """The functions that runs can be started of."""
        return self.site.served.starter

    def path(self, name: str) -> str:
        """Return a part of the address."""
        part: str = self.request.path_params[name]
        return part

    def location(self, run: str) -> dict[str, str]:
        """Return the header that says where a run is, wherever the server is mounted."""
        return {"Location": f"{self.request.scope.get('root_path', '')}/v1/runs/{run}"}

    @property
    def run(self) -> RunId:
        """The run that the address names.

        Raises:
            InvalidInput: it is no run's id.
        """
        return run_id(self.path("run"))

    def query(self, kind: type[T]) -> T:
        """Return what stands behind the question mark.

        Raises:
            InvalidInput: it is something else, or nothing that is known here.
        """
        given: dict[str, Any] = {}
        many = {each.name for each in msgspec.structs.fields(kind) if each.type == list[str]}
        for name, value in self.request.query_params.multi_items():
            if name in many:
                given.setdefault(name, []).append(value)
            elif name != "token":
                given[name] = value
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"the query: {error}") from None

    async def body(self, kind: type[T]) -> T:
        """Return the body; an empty one is an empty object.

        Raises:
            NotJson: it is said to be something else.
            PayloadTooLarge: it is over the limit.
            InvalidInput: it is not JSON, nests too deep, or has another form.
        """
        raw = await _read(self.request)
        said = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if raw and said != "application/json":
            raise NotJson(f"the body is {said[:100] or 'of no type'}, not JSON")
        refuse_deep(raw, "the body", _DEPTH)
        try:
            return msgspec.json.decode(raw or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"the body: {error}") from None


async def _read(request: Request) -> bytes:
    """Return a request's body, and stop reading one that is too large."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > limits.REQUEST_BYTES:
            raise PayloadTooLarge("the body", size=size, limit=limits.REQUEST_BYTES)
        parts.append(part)
    return b"".join(parts)


Answer = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """A route as it is served and as it is documented."""

    method: str
    path: str
    scope: Scope | None
    """Whose token is needed; None where none is, which the route itself must answer for."""
    answer: Answer
    does: str
    gives: Mapping[int, Any]
    """The type of the JSON of each status, or a list of them; None for no body, or the media types of anything else."""
    takes: type[Struct] | None = None
    query: type[Struct] | None = None
    keyed: bool = False
    refuses: tuple[int, ...] = field(default=())
    """Statuses of errors beside those that every route has."""

    async def call(self, request: Request, site: Site) -> Response:
        """Answer a request.

        Raises:
            HoldfastError: it is refused.
        """
        if self.scope is not None:
            site.gate.check(request, self.scope)
        return await self.answer(Call(request, site, key_of(request) if self.keyed else None))


def key_of(request: Request) -> str | None:
    """Return the caller's key.

    Raises:
        InvalidInput: it cannot be kept, or two headers differ.
    """
    given = {request.headers[name] for name in KEYS if name in request.headers}
    if len(given) > 1:
        raise InvalidInput("Idempotency-Key and X-Execution-ID differ: give one of them")
    return checked_key(given.pop()) if given else None
