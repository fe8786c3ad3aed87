"""What an HTTP answer says of an error: the table of statuses, and the refusals that only HTTP has."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from holdfast.core.errors import (
    BudgetExceeded,
    Conflict,
    Expired,
    HoldfastError,
    InvalidInput,
    NotFound,
    PayloadTooLarge,
    RunError,
    StoreError,
    StoreUnavailable,
)


class Refusal(HoldfastError):
    """A request that is refused before anybody looks at what it asks for."""

    status: ClassVar[int] = 400
    code = "bad_request"


class Unauthorized(Refusal):
    """No token came with the request, or one that is not known here."""

    status, code = 401, "unauthorized"
    hint = "Send `Authorization: Bearer TOKEN`; the server prints its token, or has it from HOLDFAST_TOKEN."


class Forbidden(Refusal):
    """The token, or the page that the request comes from, may not do this."""

    status, code = 403, "forbidden"


class NoRoute(Refusal):
    """Nothing is served at this address."""

    status, code = 404, "no_route"
    hint = "`GET /openapi.json` lists what is."


class WrongMethod(Refusal):
    """The address is right, and the method is not."""

    status, code = 405, "method_not_allowed"
    hint = "`GET /openapi.json` lists what is served."


class NotAcceptable(Refusal):
    """The answer has no form that the request accepts."""

    status, code = 406, "not_acceptable"
    hint = "Accept `text/event-stream` or `application/x-ndjson`."


class NotJson(Refusal):
    """The body is said to be something else than JSON."""

    status, code = 415, "unsupported_media_type"
    hint = "Send JSON, with `Content-Type: application/json`."


class TooManyStreams(Refusal):
    """The server has as many streams open as it may."""

    status, code = 503, "too_many_streams"
    hint = "Connect again later, with the same cursor: nothing is lost."


class HeadersTooLarge(Refusal):
    """The headers or the address of a request are over the limit."""

    status, code = 431, "headers_too_large"


STATUS: Final[Mapping[type[HoldfastError], int]] = {
    HoldfastError: 500,
    InvalidInput: 400,
    PayloadTooLarge: 413,
    NotFound: 404,
    Conflict: 409,
    Expired: 410,
    RunError: 409,
    BudgetExceeded: 409,
    StoreError: 500,
    StoreUnavailable: 503,
}
"""An error's own line, or that of its nearest ancestor here; a refusal brings its own."""


def status_of(error: HoldfastError) -> int:
    """Return the status of the answer that tells of `error`."""
    if isinstance(error, Refusal):
        return error.status
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def error_form(error: HoldfastError) -> dict[str, Any]:
    """Return an error as `{"error": {"code", "message", "hint", …}}`, with its own fields."""
    own = {name: value for name, value in error.data().items() if name not in ("code", "message", "hint")}
    return {"error": {"code": error.code, "message": str(error), "hint": error.hint, **own}}
