"""The routes of what waits for a person, or for whoever holds a callback token."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct
from starlette.responses import Response

from holdfast.client.protocol import CallbackInfo, Question
from holdfast.core.codec import decode_any
from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.ids import run_id
from holdfast.core.token import is_token
from holdfast.server.auth import Scope
from holdfast.server.endpoint import Call, Endpoint
from holdfast.server.wire import as_json


class Questions(Struct, kw_only=True):
    """What waits for a person, the oldest first."""

    questions: Sequence[Question]


class Of(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose questions are listed."""

    run: str | None = None


class Answer(Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer."""

    answer: Raw
    """True or false to a question; for a token that brings a value, that."""
    shown: str | None = None
    """The digest of what was decided on; a callback token needs none."""
    args: dict[str, Any] | None = None
    by: str | None = None
    note: str | None = None


class Answered(Struct, kw_only=True):
    """What was answered."""

    question: str
    accepted: bool


async def list_questions(call: Call) -> Response:
    """GET /v1/questions"""
    asked = call.query(Of)
    run = run_id(asked.run) if asked.run is not None else None
    return as_json(Questions(questions=await call.client.questions(run)))


async def get(call: Call) -> Response:
    """GET /v1/questions/{question}"""
    name = call.path("question")
    if is_token(name):
        # Whoever holds the token may see the one thing that it is for.
        return as_json(await call.client.callback(name))
    call.site.gate.check(call.request, Scope.READ)
    return as_json(await _find(call, name))


async def answer(call: Call) -> Response:
    """POST /v1/questions/{question}"""
    name = call.path("question")
    if is_token(name):
        await call.client.callback(name)  # refused before a body is read, which anybody could send
    else:
        call.site.gate.check(call.request, Scope.CONTROL)
    body = await call.body(Answer)
    value = decode_any(body.answer)
    said: dict[str, Any] = {"args": body.args, "by": body.by, "note": body.note}
    if is_token(name):
        await call.client.answer_token(name, value, **said)
        return as_json(Answered(question=name, accepted=True))
    if body.shown is None:
        raise InvalidInput('an answer names the digest of what was decided on: "shown"')
    await call.client.answer(name, value, shown=body.shown, **said)
    return as_json(Answered(question=name, accepted=True))


async def _find(call: Call, name: str) -> Question:
    run = run_id(name.partition(".")[0])
    for question in await call.client.questions(run):
        if question.id == name:
            return question
    raise NotFound(f"an open question {name[:100]!r}")


ROUTES = (
    Endpoint(
        "GET", "/v1/questions", Scope.READ, list_questions, "List what waits for a person, the oldest first.",
        {200: Questions}, query=Of, refuses=(404,),
    ),
    Endpoint(
        "GET", "/v1/questions/{question}", None, get,
        "Tell what is asked; a callback token in its place needs no other token.",
        {200: [Question, CallbackInfo]}, refuses=(401, 403, 404),
    ),
    Endpoint(
        "POST", "/v1/questions/{question}", None, answer,
        "Answer a question; a callback token in its place needs no other token, and answers exactly one.",
        {200: Answered}, takes=Answer, refuses=(401, 403, 404, 409, 410, 413, 415),
    ),
)  # fmt: skip
