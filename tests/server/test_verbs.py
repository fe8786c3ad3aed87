"""What anybody says to a run over HTTP."""

from typing import Any

import pytest

import holdfast as hf
from holdfast.server import create_app
from tests.server.serving import Asking, Served


def test_a_signal_with_a_key_is_sent_once(ask: Asking) -> None:
    """The same key again is a repeat, and the run receives one."""
    run = ask.start("waits", {"rounds": 2})
    sent = [
        ask.http.post(f"/v1/runs/{run}/signals/go", json={"value": 3}, headers={"Idempotency-Key": key}).json()
        for key in ("a", "a", "b")
    ]
    assert [each["outcome"] for each in sent] == ["sent", "before", "sent"]
    assert ask.ended(run)["result"] == 6
    late = ask.http.post(f"/v1/runs/{run}/signals/go", json={"value": 3})
    assert late.json() == {"run": run, "outcome": "ended"}


def test_a_paused_run_rests_until_it_is_resumed(ask: Asking) -> None:
    """Pause and resume are seen in the run's own events."""
    run = ask.start("waits")
    ask.events(run, until="RunParked")
    key = {"Idempotency-Key": "once"}
    assert ask.http.post(f"/v1/runs/{run}/pause", json={"by": "ada"}, headers=key).json()["accepted"]
    ask.until(run, "paused")
    ask.http.post(f"/v1/runs/{run}/resume", json={})
    ask.until(run, "waiting")
    # The pause was asked for under this key before: asked again, it is not another one.
    ask.http.post(f"/v1/runs/{run}/pause", headers=key)
    ask.http.post(f"/v1/runs/{run}/signals/go", json={"value": 1})
    assert ask.ended(run)["result"] == 1


def test_a_failed_run_is_tried_again_and_any_run_is_forked(ask: Asking) -> None:
    """Both name the run that goes on."""
    failed = ask.start("fails")
    assert ask.ended(failed)["error"]["message"] == "it had to fail"
    again = ask.http.post(f"/v1/runs/{failed}/retry", json={"by": "ada"})
    assert again.status_code == 200
    assert ask.http.get(f"/v1/runs/{again.json()['run']}").json()["base"] == failed
    whole = ask.start("double", 4)
    ask.ended(whole)
    fork = ask.http.post(f"/v1/runs/{whole}/fork", json={"at": 1})
    assert fork.status_code == 201
    assert ask.ended(fork.json()["run"])["result"] == 8
    assert ask.http.post(f"/v1/runs/{whole}/retry").status_code == 409
    assert ask.http.post(f"/v1/runs/{whole}/fork", json={"at": 999}).status_code == 400


def test_an_exhausted_run_goes_on_when_its_budget_is_raised(ask: Asking) -> None:
    """The same key adds once."""
    body = {"name": "steps", "input": {"number": 3}, "budget": {"steps": 1}}
    run = ask.http.post("/v1/runs", json=body).json()["id"]
    ask.events(run, until="RunParked")
    for _ in range(2):
        more = {"steps": 2, "by": "ada"}
        said = ask.http.post(f"/v1/runs/{run}/raise", json=more, headers={"Idempotency-Key": "more"})
        assert said.status_code == 200
    info = ask.ended(run)
    assert (info["status"], info["budget"]["steps"]["total"]) == ("completed", 3)


def test_a_doubt_is_ended_by_a_persons_word(ask: Asking) -> None:
    """The step's key stands in the address, encoded as any address is."""
    run = ask.start("doubts")
    ask.events(run, until="RunParked")
    where = f"/v1/runs/{run}/steps/0/pay%231/resolve"
    assert ask.http.post(where, json={}).status_code == 400
    assert ask.http.post(where, json={"value": 1, "not_done": True}).status_code == 400
    assert ask.http.post(f"/v1/runs/{run}/steps/0/nothing%231/resolve", json={"value": 1}).status_code == 404
    assert ask.http.post(where, json={"value": "paid", "by": "ada"}).json() == {"run": run, "accepted": True}
    assert ask.ended(run)["result"] == "paid"
    assert ask.http.post(where, json={"value": "paid"}).status_code == 404


def test_a_question_is_listed_and_answered_for_exactly_what_was_shown(ask: Asking) -> None:
    """An answer to something else is a conflict; a text is no decision."""
    run = ask.start("asks", "Pay?")
    ask.events(run, until="RunParked")
    [question] = ask.http.get(f"/v1/questions?run={run}").json()["questions"]
    assert question in ask.http.get("/v1/questions").json()["questions"]
    where = f"/v1/questions/{question['id']}"
    assert ask.http.get(where).json() == question
    assert ask.http.post(where, json={"answer": True}).status_code == 400
    assert ask.http.post(where, json={"answer": "no", "shown": question["shown"]}).status_code == 400
    assert ask.http.post(where, json={"answer": True, "shown": "0" * 64}).status_code == 409
    yes = {"answer": True, "shown": question["shown"], "args": {"cents": 2}, "by": "ada"}
    assert ask.http.post(where, json=yes).json() == {"question": question["id"], "accepted": True}
    assert ask.ended(run)["result"] is True
    assert ask.http.post(where, json=yes).status_code == 409


def test_a_callback_token_answers_exactly_one_wait_and_needs_no_other(served: Served, ask: Asking) -> None:
    """Whoever holds it may look at that wait and answer it once, and nothing else."""
    run = ask.start("calls_back")
    token = next(event for event in ask.events(run, until="Emitted") if event["type"] == "Emitted")["data"]["value"]
    ask.events(run, until="RunParked")
    with served.client(token=None) as stranger:
        seen = stranger.get(f"/v1/questions/{token}")
        assert (seen.status_code, seen.json()["signal"], seen.json()["state"]) == (200, "paid", "open")
        for _ in range(2):  # the same answer again is the same answer
            said = stranger.post(f"/v1/questions/{token}", json={"answer": 7})
            assert said.status_code == 200
        other = stranger.post(f"/v1/questions/{token}", json={"answer": 8})
        assert (other.status_code, other.json()["error"]["code"]) == (409, "already_answered")
        forged = stranger.post(f"/v1/questions/hfc_{'A' * 64}", json={"answer": 8})
        assert forged.status_code == 404
        assert stranger.get("/v1/questions", headers={"Authorization": f"Bearer {token}"}).status_code == 401
        assert stranger.get(f"/v1/questions/{run}.1").status_code == 401
    assert ask.ended(run)["result"] == 7


def test_what_is_here_is_told(served: Served, ask: Asking) -> None:
    """Functions with their parameters, workers, limits, and that the server and its store answer."""
    agents = {agent["name"]: agent["parameters"] for agent in ask.http.get("/v1/agents").json()["agents"]}
    assert agents["waits"] == [{"name": "rounds", "type": "int", "required": False}]
    [worker] = ask.http.get("/v1/workers").json()["workers"]
    assert worker["id"] == served.runtime.worker_id
    ask.ended(ask.start("limited"))
    [limit] = ask.http.get("/v1/limits").json()["limits"]
    assert (limit["name"], limit["at_once"], limit["held"]) == ("shared", 2, 0)
    with served.client(token=None) as stranger:
        assert stranger.get("/healthz").json() == stranger.get("/readyz").json() == {"ok": True}


@pytest.mark.parametrize(
    "wrong",
    [{"token": "short"}, {"token": {}}, {"token": {"a" * 20: ["fly"]}}, {"token": "a" * 20, "streams": 0},
     {"token": "a" * 20, "hosts": "example.org"}, {"token": "a" * 15 + " b"}],
)  # fmt: skip
def test_a_server_is_not_made_of_what_makes_no_sense(served: Served, wrong: dict[str, Any]) -> None:
    """No token, one that can be guessed, a scope that is none: refused when the server is made."""
    with pytest.raises(hf.HoldfastError):
        create_app(served.runtime, **wrong)


def test_without_a_token_in_code_the_environment_has_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no server without a token."""
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    with pytest.raises(hf.HoldfastError, match="HOLDFAST_TOKEN"):
        create_app(served.runtime)
    monkeypatch.setenv("HOLDFAST_TOKEN", "t" * 20)
    assert create_app(served.runtime) is not None
