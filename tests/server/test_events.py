"""A run's events over HTTP: from any cursor, in two forms, to an end that readers know."""

import json

import pytest

from tests.server.program import gate
from tests.server.serving import Asking, Served


def test_both_forms_say_the_same(ask: Asking) -> None:
    """SSE puts the id and the type beside the JSON that a line of NDJSON is."""
    run = ask.start("double", 2)
    lines = ask.events(run)
    text = ask.http.get(f"/v1/runs/{run}/events", headers={"Accept": "text/event-stream"}).text
    events = [block for block in text.split("\n\n") if block.startswith("id: ")]
    assert [json.loads(block.partition("\ndata: ")[2]) for block in events] == lines
    assert [block.splitlines()[:2] for block in events] == [[f"id: {e['id']}", f"event: {e['type']}"] for e in lines]
    assert [list(line) for line in lines] == [["id", "run", "seq", "type", "v", "at", "data"]] * len(lines)


def test_a_cursor_gets_exactly_the_rest(ask: Asking) -> None:
    """From every event of a run, by header or by address, what follows is what followed."""
    run = ask.start("double", 2)
    ids = [event["id"] for event in ask.events(run)]
    for place, last in enumerate(ids[:-1], 1):
        assert [event["id"] for event in ask.events(run, last)] == ids[place:]
        by_address = ask.http.get(
            f"/v1/runs/{run}/events?after={last}", headers={"Accept": "application/x-ndjson"}
        ).text.splitlines()
        assert [json.loads(line)["id"] for line in by_address] == ids[place:]


def test_whoever_has_all_of_an_ended_run_is_told_to_stop(ask: Asking) -> None:
    """204 is the one answer at which a browser's EventSource does not connect again."""
    run = ask.start("double", 2)
    last = ask.events(run)[-1]["id"]
    answer = ask.http.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": last})
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize(
    ("after", "code", "status"), [("99", "bad_cursor", 400), ("x", "bad_cursor", 400), ("1@7", "conflict", 409)]
)
def test_a_cursor_that_cannot_be_continued_from_is_refused(ask: Asking, after: str, code: str, status: int) -> None:
    """Malformed, too far, or of another epoch: an answer that says so, before any stream begins."""
    run = ask.start("double", 2)
    answer = ask.http.get(f"/v1/runs/{run}/events?after={after}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_without_following_a_stream_ends_where_the_journal_does(ask: Asking) -> None:
    """A run that waits does not keep such a reader waiting."""
    run = ask.start("waits")
    ask.events(run, until="RunParked")
    answer = ask.http.get(f"/v1/runs/{run}/events?follow=false", headers={"Accept": "application/x-ndjson"})
    assert json.loads(answer.text.splitlines()[-1])["type"] == "RunParked"
    ask.http.post(f"/v1/runs/{run}/cancel")


def test_previews_are_sent_and_end_in_their_entry(ask: Asking, served: Served) -> None:
    """Chunks have ids that a reader continues from, and the entry says what they previewed."""
    run = ask.start("teller", 3)
    before = ask.events(run, until="chunk")
    served.loop.call_soon_threadsafe(gate.set)
    rest = ask.events(run, before[-1]["id"])
    kept = next(event for event in rest if event["type"] == "StepCompleted")
    assert kept["data"]["value"] == "w0 w1 w2 "
    assert before[-1]["id"] == "1:1:1"
    assert before[-1]["data"] == {
        "step": "0/_tell#1", "attempt": 1, "offset": 0, "value": {"kind": "text", "text": "w0 "},
    }  # fmt: skip


@pytest.mark.parametrize("accept", ["text/html", "application/json", "text/event-stream;q=0"])
def test_a_form_that_no_stream_has_is_refused(ask: Asking, accept: str) -> None:
    """A reader that could not read the answer is told which forms there are."""
    run = ask.start("double", 2)
    answer = ask.http.get(f"/v1/runs/{run}/events", headers={"Accept": accept})
    assert (answer.status_code, answer.json()["error"]["code"]) == (406, "not_acceptable")


def test_what_is_not_here_has_no_stream(ask: Asking) -> None:
    """An unknown run and a malformed id are answers, not empty streams."""
    unknown = ask.http.get("/v1/runs/01900000-0000-7000-8000-000000000000/events")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert ask.http.get("/v1/runs/nonsense/events").status_code == 400
