"""The routes of runs: start, list, look at, watch and delete."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.responses import Response

from holdfast.client.family import Family, Kin
from holdfast.client.protocol import RunInfo, RunSummary
from holdfast.client.standing import is_ours
from holdfast.core import limits
from holdfast.core.budget import Budget
from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.server.auth import Scope
from holdfast.server.endpoint import Call, Endpoint
from holdfast.server.sse import form_of
from holdfast.server.wire import NDJSON, SSE, Line, as_json, line_of


class NewRun(Struct, kw_only=True, forbid_unknown_fields=True):
    """A run to start."""

    name: str
    """The durable function's."""
    input: Raw | UnsetType = UNSET
    """An object of named arguments, or the bare value for one parameter; left out, none is given."""
    key: str | None = None
    """The run's own key, unless a header has it."""
    conversation: str | None = None
    """The conversation whose next turn it is."""
    labels: dict[str, str] | None = None
    delay: float | None = None
    """Seconds until it begins."""
    budget: dict[str, Any] | None = None
    """What it may spend, by the names of hf.Budget."""


class Choice(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which runs are listed."""

    status: Status | None = None
    name: str | None = None
    label: list[str] = []
    before: str | None = None
    """The last id of the page before."""
    limit: int = 100


class Runs(Struct, kw_only=True):
    """A page of runs, newest first."""

    runs: Sequence[RunSummary]
    next: str | None
    """What `before` is for the next page; null on the last."""


class Cursor(Struct, kw_only=True, forbid_unknown_fields=True):
    """From where on events are read."""

    after: str | None = None
    """The id of the last event that the reader has; the header Last-Event-ID comes before it."""
    follow: bool = True


class Tree(Struct, kw_only=True):
    """A run with its children and theirs."""

    run: RunInfo
    children: Sequence[Kin]
    more: int
    """How many descendants were left out."""


async def start(call: Call) -> Response:
    """POST /v1/runs"""
    asked = await call.body(NewRun)
    if call.key is not None and asked.key not in (None, call.key):
        raise InvalidInput("the key in the body and the one in the header differ: give one of them")
    begun = await call.starter.start(
        asked.name,
        None if isinstance(asked.input, UnsetType) else asked.input,
        key=call.key if call.key is not None else asked.key,
        conversation=asked.conversation,
        labels=asked.labels,
        delay=asked.delay,
        budget=read_budget(asked.budget),
    )
    info = await call.client.info(begun.run)
    return as_json(info, 201 if begun.created else 200, call.location(begun.run))


def read_budget(given: Mapping[str, Any] | None) -> Budget | None:
    """Return a budget from its JSON: a deadline is a time in ISO 8601, or seconds.

    Raises:
        InvalidInput: it has another form.
    """
    if given is None:
        return None
    known = [each.name for each in fields(Budget)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InvalidInput(f"a budget has {', '.join(known)}, and not {', '.join(unknown)}")
    named = dict(given)
    if isinstance(named.get("deadline"), str):
        named["deadline"] = read_time(named["deadline"], "the budget's deadline")
    return Budget(**named)


def read_time(text: str, what: str) -> datetime:
    """Return a time that was written as ISO 8601.

    Raises:
        InvalidInput: it was not.
    """
    try:
        return msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        raise InvalidInput(f"{what} is a time such as 2027-01-31T12:00:00Z, or a number of seconds") from None


async def list_runs(call: Call) -> Response:
    """GET /v1/runs"""
    choice = call.query(Choice)
    if not 1 <= choice.limit <= limits.PAGE_RUNS:
        raise InvalidInput(f"a page has 1 to {limits.PAGE_RUNS:,} runs, not {choice.limit}")
    labels = dict(label.split("=", 1) for label in choice.label if "=" in label)
    if len(labels) != len(choice.label):
        raise InvalidInput("a label is written NAME=VALUE, and each name once")
    found: list[RunSummary] = []
    before, more = choice.before, True
    while more and len(found) < choice.limit:
        page = await call.client.runs(
            status=choice.status, name=choice.name, labels=labels, before=before, limit=choice.limit - len(found)
        )
        more = len(page) == choice.limit - len(found)
        before = page[-1].id if page else before
        # What schedules remember themselves by is ours, and shown to whoever names it.
        found += [run for run in page if choice.name is not None or not is_ours(run.name)]
    return as_json(Runs(runs=found, next=before if more else None))


async def get(call: Call) -> Response:
    """GET /v1/runs/{run}"""
    return as_json(await call.client.info(call.run))


async def delete(call: Call) -> Response:
    """DELETE /v1/runs/{run}"""
    if not await call.client.delete(call.run):
        raise NotFound(f"run {call.run}")
    return Response(status_code=204)


async def events(call: Call) -> Response:
    """GET /v1/runs/{run}/events"""
    asked, run = call.query(Cursor), call.run
    form = form_of(call.request.headers.get("accept", ""))
    after = call.request.headers.get("last-event-id") or asked.after
    if await call.client.is_over(run, after=after):
        # The one answer at which a browser's EventSource stops connecting again.
        return Response(status_code=204)
    return call.site.streams.answer(_lines(call, run, after, asked.follow), form)


async def _lines(call: Call, run: RunId, after: str | None, follow: bool) -> AsyncGenerator[Line, None]:
    feed: Any = call.client.events(run, after=after, follow=follow)
    async with aclosing(feed):
        async for event in feed:
            yield line_of(event)


async def tree(call: Call) -> Response:
    """GET /v1/runs/{run}/tree"""
    info = await call.client.info(call.run)
    family = Family(call.client)
    feed: Any = call.client.events(call.run, follow=False)
    children = await family.children([event async for event in feed])
    return as_json(Tree(run=info, children=children, more=family.more))


STREAM = (SSE, NDJSON)
ROUTES = (
    Endpoint(
        "POST", "/v1/runs", Scope.START, start, "Start a run, or find the one that its key belongs to.",
        {201: RunInfo, 200: RunInfo}, takes=NewRun, keyed=True, refuses=(404, 409, 413, 415),
    ),
    Endpoint("GET", "/v1/runs", Scope.READ, list_runs, "List runs, newest first.", {200: Runs}, query=Choice),
    Endpoint("GET", "/v1/runs/{run}", Scope.READ, get, "Tell where a run stands.", {200: RunInfo}, refuses=(404,)),
    Endpoint(
        "DELETE", "/v1/runs/{run}", Scope.ADMIN, delete, "Delete a run that has ended; its key stays taken.",
        {204: None}, refuses=(404, 409),
    ),
    Endpoint(
        "GET", "/v1/runs/{run}/events", Scope.READ, events,
        "Send a run's events after a cursor: history, then live until it ends.",
        {200: STREAM, 204: None}, query=Cursor, refuses=(404, 406, 409),
    ),
    Endpoint(
        "GET", "/v1/runs/{run}/tree", Scope.READ, tree, "Tell of a run's children, theirs, and their budgets.",
        {200: Tree}, refuses=(404,),
    ),
)  # fmt: skip
