"""Chat turns: one envelope around a durable run, whoever leaves, comes again, or fails."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import holdfast as hf
from holdfast.models import Reply
from holdfast.models import Request as Request_
from holdfast.server import Hooks, Outcome, handle_chat_turn
from holdfast.testing import ScriptedModel
from tests.server.serving import Asking, Served

DONE: list[Any] = []
"""What the hooks were given, in order."""


def shout(text: str) -> str:
    """Make the answer loud."""
    DONE.append(("transform", text))
    return text.upper()


def keep(outcome: Outcome) -> None:
    """Keep the answer."""
    DONE.append(("persist", outcome.result))


def tell(outcome: Outcome) -> None:
    """Tell how the turn came out."""
    DONE.append(("on_complete", outcome.result or outcome.error))


def flush() -> None:
    """Send what was traced."""
    DONE.append(("flush", None))


def broken(*_: Any) -> None:
    """Fail, as hooks do."""
    raise RuntimeError("the hook is broken")


def _model() -> ScriptedModel:
    return ScriptedModel("hello there", "and again", "a third time")


hooked = hf.Agent("hooked", model=_model(), hooks=Hooks(transform=shout, persist=keep, on_complete=tell, flush=flush))
brittle = hf.Agent(
    "brittle", model=_model(), hooks=Hooks(transform=broken, persist=broken, on_complete=broken, flush=broken)
)
strict = hf.Agent("strict", model=_model(), hooks=Hooks(persist=broken, flush=flush, on_error="fail"))
plain = hf.Agent("plain", model=_model())


class Steered(ScriptedModel):
    """A model during whose first answer somebody says something more."""

    def __init__(self) -> None:
        super().__init__("first", "second")
        self.run: asyncio.Future[hf.Run[str]] = asyncio.get_running_loop().create_future()

    async def ask(self, request: Request_, say: Any) -> Reply:
        """Let somebody speak first."""
        if not self.requests:
            assert await (await self.run).steer("and this")
        return await super().ask(request, say)


@hf.durable
async def slow(ctx: hf.Context, message: str) -> str:
    """Answer when it is told to."""
    return f"{message} {await ctx.receive(hf.Signal('go', str))}"


@hf.durable
async def fails(ctx: hf.Context, message: str) -> str:
    """Fail at once."""
    raise ValueError(message)


app = hf.App(hooked, brittle, strict, plain, slow, fails)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of agents."""
    with Served(tmp_path_factory.mktemp("chat") / "runs.db", app) as served:
        yield served


def turn(ask: Asking, talk: str, agent: str, message: str, key: str | None = None, **rest: Any) -> list[dict[str, Any]]:
    """Take a turn to its end."""
    body = {"message": message, "agent": agent, **rest}
    answer = ask.http.post(
        f"/v1/conversations/{talk}/turns", json=body, headers={"Idempotency-Key": key} if key else {}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_turn_is_one_envelope_around_its_run(ask: Asking) -> None:
    """It begins with the run's id, holds exactly its events, and ends with its result."""
    lines = turn(ask, "one", "plain", "hi")
    run = lines[0]["run"]
    assert lines[0] == {"type": "session.run.started", "run": run, "conversation": "one"}
    told = [line for line in lines[1:-1] if line["type"] != "chunk"]
    assert told == [event for event in ask.events(run) if event["type"] != "chunk"]
    assert lines[-1] == {
        "type": "session.run.completed", "run": run, "conversation": "one", "status": "completed",
        "result": "hello there",
    }  # fmt: skip
    second = turn(ask, "one", "plain", "more")
    assert second[-1]["result"] == "and again"
    talk = ask.http.get("/v1/conversations/one").json()
    assert [each["id"] for each in talk["turns"]] == [run, second[0]["run"]]
    assert [(said["role"], said["parts"][0]["text"]) for said in talk["messages"]] == [
        ("user", "hi"), ("assistant", "hello there"), ("user", "more"), ("assistant", "and again"),
    ]  # fmt: skip


def test_a_retry_with_the_same_key_joins_the_same_turn_and_a_leaver_cancels_nothing(ask: Asking) -> None:
    """A client that lost its connection asks again and is told the whole turn, or only what follows its last id."""
    where, body = "/v1/conversations/two/turns", {"message": "wait", "agent": "slow"}
    key = {"X-Execution-ID": "turn of two"}
    with ask.http.stream("POST", where, json=body, headers=key) as answer:
        first = json.loads(next(answer.iter_lines()))
    ask.until(first["run"], "waiting")
    ask.http.post(f"/v1/runs/{first['run']}/signals/go", json={"value": "over"})
    again = turn(ask, "two", "slow", "wait", key="turn of two")
    assert again[0] == first
    assert again[-1]["result"] == "wait over"
    rest = ask.http.post(where, json=body, headers={**key, "Last-Event-ID": "2"}).text.splitlines()
    assert [json.loads(line) for line in rest] == [again[0], *again[3:]]
    assert len(ask.http.get("/v1/conversations/two").json()["turns"]) == 1
    other = ask.http.post(where, json={**body, "message": "other"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    assert ask.http.post(where, json=body, headers={**key, "Last-Event-ID": "99"}).status_code == 400


def test_a_turn_is_not_begun_for_an_answer_that_is_an_error(ask: Asking, served: Served) -> None:
    """Whoever is refused comes again: what they say is said once."""
    body = {"message": "hi", "agent": "plain"}
    wrong = ask.http.post("/v1/conversations/refused/turns", json=body, headers={"Last-Event-ID": "zzz"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_cursor")
    most, served.streams.most = served.streams.most, 0
    try:
        full = ask.http.post("/v1/conversations/refused/turns", json=body)
    finally:
        served.streams.most = most
    assert (full.status_code, full.json()["error"]["code"]) == (503, "too_many_streams")
    assert ask.http.get("/v1/conversations/refused").status_code == 404


async def test_hooks_are_told_of_the_last_answer_only() -> None:
    """What was said while the model spoke is taken in before anything is kept."""
    kept: list[Any] = []
    model = Steered()
    agent = hf.Agent("steered", model=model, hooks=Hooks(persist=lambda outcome: kept.append(outcome.result)))
    async with hf.testing.open(app=hf.App(agent)) as runtime:
        run = await runtime.start(agent, "hello")
        model.run.set_result(run)
        assert await run.result(timeout=10) == "second"
    assert kept == ["second"]


def test_a_failure_is_the_last_message_and_is_told_again(ask: Asking) -> None:
    """Who comes later hears the same failure: it is an entry."""
    lines = turn(ask, "three", "fails", "it had to", key="failing")
    assert (lines[-1]["type"], lines[-1]["error"]["message"]) == ("session.run.failed", "it had to")
    assert turn(ask, "three", "fails", "it had to", key="failing") == lines


def test_a_busy_conversation_queues_or_refuses(ask: Asking) -> None:
    """What is sent meanwhile waits for its turn, or is told that another one is open."""
    where = "/v1/conversations/busy/turns"
    with ask.http.stream("POST", where, json={"message": "a", "agent": "slow"}) as answer:
        run = json.loads(next(answer.iter_lines()))["run"]
    refused = ask.http.post(where, json={"message": "b", "agent": "slow", "if_busy": "reject"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conversation_busy")
    with ask.http.stream("POST", where, json={"message": "c", "agent": "slow"}) as answer:
        queued = json.loads(next(answer.iter_lines()))["run"]
    assert ask.http.get(f"/v1/runs/{queued}").json()["status"] == "queued"
    for each in (run, queued):
        ask.http.post(f"/v1/runs/{each}/signals/go", json={"value": "now"})
        assert ask.ended(each)["status"] == "completed"


def test_the_hooks_are_steps_of_the_turn_in_their_order(ask: Asking) -> None:
    """Transform, persist, on_complete, flush: each recorded, and what was transformed is the result."""
    DONE.clear()
    lines = turn(ask, "hooks", "hooked", "hi", key="hooked once")
    assert lines[-1]["result"] == "HELLO THERE"
    wanted = [("transform", "hello there"), ("persist", "HELLO THERE"), ("on_complete", "HELLO THERE"), ("flush", None)]
    assert wanted == DONE
    steps = [line["data"]["step"] for line in lines if line["type"] == "StepCompleted"]
    assert steps == [f"0/hook%20{name}#1" for name, _ in wanted]
    turn(ask, "hooks", "hooked", "hi", key="hooked once")
    assert wanted == DONE  # joined, not taken again


def test_a_hook_that_fails_masks_nothing(ask: Asking) -> None:
    """The answer stands, and each failure is an entry."""
    lines = turn(ask, "brittle", "brittle", "hi")
    assert (lines[-1]["type"], lines[-1]["result"]) == ("session.run.completed", "hello there")
    assert [line["data"]["error"]["message"] for line in lines if line["type"] == "StepFailed"] == [
        "the hook is broken"
    ] * 4


def test_a_hook_may_be_told_to_fail_the_turn(ask: Asking) -> None:
    """Then the turn fails with what the hook failed with, and what comes last still comes."""
    DONE.clear()
    lines = turn(ask, "strict", "strict", "hi")
    assert lines[-1]["type"] == "session.run.failed"
    assert "the hook is broken" in lines[-1]["error"]["message"]
    assert DONE == [("flush", None)]


def test_a_cleanup_that_fails_never_replaces_the_first_error(served: Served) -> None:
    """A turn that fails by itself fails with that, whatever its hooks do."""
    DONE.clear()

    async def take() -> str:
        run = await served.runtime.start(silent, "hi")
        try:
            return await run.result()
        except hf.RunError as error:
            return str(error.error and error.error["message"])

    broken_model = ScriptedModel(ValueError("the model is broken"))
    silent = hf.Agent(
        "silent", model=broken_model, retry=hf.Retry(attempts=1), hooks=Hooks(on_complete=broken, flush=flush)
    )
    assert "the model is broken" in served.wait(take())
    assert DONE == [("flush", None)]


def test_a_turn_with_hooks_survives_every_crash() -> None:
    """Killed around any write, it ends with the same answer and the same records."""
    survived = asyncio.run(hf.testing.every_crash(hooked, "hi", app=hf.App(hooked)))
    assert survived.crashes > 5
    assert survived.unbroken.result == "HELLO THERE"


def test_an_application_of_its_own_takes_turns(served: Served) -> None:
    """A handler of Starlette or FastAPI is one call; who may ask is the application's own matter."""

    async def say(request: Request) -> Response:
        body = await request.json()
        return await handle_chat_turn(
            served.runtime, plain, request, conversation=body["talk"], message=body["text"]
        )  # fmt: skip

    own = Starlette(routes=[Route("/say", say, methods=["POST"])])

    async def ask() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app=own)
        async with httpx2.AsyncClient(transport=transport, base_url="http://own") as client:
            key = {"Idempotency-Key": "own key"}
            said = [{"talk": "own", "text": text} for text in ("hi", "hi", "ho")]
            return [await client.post("/say", json=body, headers=key) for body in said]

    first, again, other = served.wait(ask())
    assert json.loads(first.text.splitlines()[-1])["result"] == "hello there"
    told = [line for line in first.text.splitlines() if '"chunk"' not in line]
    assert [line for line in again.text.splitlines() if '"chunk"' not in line] == told
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
