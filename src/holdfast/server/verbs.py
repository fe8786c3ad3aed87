"""The routes by which anybody says something to a run."""

from msgspec import UNSET, Raw, Struct, UnsetType, field
from starlette.responses import Response

from holdfast.core.codec import NULL, decode_any
from holdfast.core.errors import InvalidInput
from holdfast.core.status import NOT_DONE
from holdfast.server.auth import Scope
from holdfast.server.endpoint import Call, Endpoint
from holdfast.server.runs import read_time
from holdfast.server.wire import as_json


class Said(Struct, kw_only=True):
    """What became of what was said to a run."""

    run: str
    accepted: bool
    """False when the run had ended before."""


class Sent(Struct, kw_only=True):
    """What became of a signal, or of what an agent was told."""

    run: str
    outcome: str
    """`sent`, `before` when its key was used before, or `ended`."""


class Other(Struct, kw_only=True):
    """The run that goes on instead, or as well."""

    run: str


class NewSignal(Struct, kw_only=True, forbid_unknown_fields=True):
    """A signal to send."""

    value: Raw = field(default_factory=lambda: NULL)
    by: str | None = None


class Steering(Struct, kw_only=True, forbid_unknown_fields=True):
    """What an agent at work is told."""

    text: str
    by: str | None = None


class Asked(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who asks for something, and why."""

    reason: str = ""
    by: str | None = None


class By(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who asks for something."""

    by: str | None = None


class NewFork(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to fork."""

    at: int | None = None
    """The last entry that the fork shares; the run's last one unless said."""
    by: str | None = None


class More(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to add to a budget."""

    steps: int | None = None
    calls: int | None = None
    tokens: int | None = None
    usd: float | str | None = None
    """A number, or the same as text, which is exact."""
    deadline: float | str | None = None
    """Seconds from now, or a time in ISO 8601."""
    reason: str = ""
    by: str | None = None


class Word(Struct, kw_only=True, forbid_unknown_fields=True):
    """A person's word about a step in doubt: the value that it returned, or that it was not done."""

    value: Raw | UnsetType = UNSET
    not_done: bool = False
    by: str | None = None
    note: str | None = None


async def signal(call: Call) -> Response:
    """POST /v1/runs/{run}/signals/{name}"""
    body = await call.body(NewSignal)
    outcome = await call.client.send(call.run, call.path("name"), decode_any(body.value), key=call.key, by=body.by)
    return as_json(Sent(run=call.run, outcome=outcome))


async def steer(call: Call) -> Response:
    """POST /v1/runs/{run}/steer"""
    body = await call.body(Steering)
    outcome = await call.client.steer(call.run, body.text, key=call.key, by=body.by)
    return as_json(Sent(run=call.run, outcome=outcome))


async def cancel(call: Call) -> Response:
    """POST /v1/runs/{run}/cancel"""
    body = await call.body(Asked)
    return as_json(Said(run=call.run, accepted=await call.client.cancel(call.run, reason=body.reason, by=body.by)))


async def pause(call: Call) -> Response:
    """POST /v1/runs/{run}/pause"""
    body = await call.body(Asked)
    accepted = await call.client.pause(call.run, reason=body.reason, by=body.by, key=call.key)
    return as_json(Said(run=call.run, accepted=accepted))


async def resume(call: Call) -> Response:
    """POST /v1/runs/{run}/resume"""
    body = await call.body(By)
    return as_json(Said(run=call.run, accepted=await call.client.resume(call.run, by=body.by, key=call.key)))


async def retry(call: Call) -> Response:
    """POST /v1/runs/{run}/retry"""
    body = await call.body(By)
    return as_json(Other(run=await call.client.retry(call.run, by=body.by)))


async def fork(call: Call) -> Response:
    """POST /v1/runs/{run}/fork"""
    body = await call.body(NewFork)
    made = await call.client.fork(call.run, body.at, by=body.by)
    return as_json(Other(run=made), 201, call.location(made))


async def raise_budget(call: Call) -> Response:
    """POST /v1/runs/{run}/raise"""
    body = await call.body(More)
    deadline = read_time(body.deadline, "deadline") if isinstance(body.deadline, str) else body.deadline
    accepted = await call.client.raise_budget(
        call.run, steps=body.steps, calls=body.calls, tokens=body.tokens, usd=body.usd, deadline=deadline,
        reason=body.reason, by=body.by, key=call.key,
    )  # fmt: skip
    return as_json(Said(run=call.run, accepted=accepted))


async def resolve(call: Call) -> Response:
    """POST /v1/runs/{run}/steps/{step}/resolve"""
    body = await call.body(Word)
    if isinstance(body.value, UnsetType) != body.not_done:
        raise InvalidInput('say what the step returned, "value", or that it was not done, "not_done": true')
    value = NOT_DONE if isinstance(body.value, UnsetType) else decode_any(body.value)
    await call.client.resolve(call.run, call.path("step"), value, by=body.by, note=body.note)
    return as_json(Said(run=call.run, accepted=True))


_RUN = "/v1/runs/{run}"
_REFUSES = (404, 409, 413, 415)
ROUTES = (
    Endpoint(
        "POST", f"{_RUN}/signals/{{name}}", Scope.CONTROL, signal, "Send a run a signal; the same key sends it once.",
        {200: Sent}, takes=NewSignal, keyed=True, refuses=_REFUSES,
    ),
    Endpoint(
        "POST", f"{_RUN}/steer", Scope.CONTROL, steer, "Tell an agent at work something, before it speaks next.",
        {200: Sent}, takes=Steering, keyed=True, refuses=_REFUSES,
    ),
    Endpoint(
        "POST", f"{_RUN}/cancel", Scope.CONTROL, cancel, "Ask for a run's end.",
        {200: Said}, takes=Asked, refuses=_REFUSES,
    ),
    Endpoint(
        "POST", f"{_RUN}/pause", Scope.CONTROL, pause, "Ask a run to rest at its next entry, until it is resumed.",
        {200: Said}, takes=Asked, keyed=True, refuses=_REFUSES,
    ),
    Endpoint(
        "POST", f"{_RUN}/resume", Scope.CONTROL, resume, "Let a paused run go on.",
        {200: Said}, takes=By, keyed=True, refuses=_REFUSES,
    ),
    Endpoint(
        "POST", f"{_RUN}/retry", Scope.CONTROL, retry,
        "Have a run tried again that failed or was set aside, and tell which run that is.",
        {200: Other}, takes=By, refuses=_REFUSES,
    ),
    Endpoint(
        "POST", f"{_RUN}/fork", Scope.CONTROL, fork, "Start a run that has another's history up to an entry.",
        {201: Other}, takes=NewFork, refuses=_REFUSES,
    ),
    Endpoint(
        "POST", f"{_RUN}/raise", Scope.CONTROL, raise_budget, "Add to a run's budget; the same key adds once.",
        {200: Said}, takes=More, keyed=True, refuses=_REFUSES,
    ),
    Endpoint(
        "POST", f"{_RUN}/steps/{{step:path}}/resolve", Scope.CONTROL, resolve, "End a step's doubt by a person's word.",
        {200: Said}, takes=Word, refuses=_REFUSES,
    ),
)  # fmt: skip
