"""Starting, listing, looking at and ending runs over HTTP."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.client.protocol import RunInfo
from tests.server.serving import Asking, Served

FIELDS = (
    "id name status reason key input result error conversation parent root labels created_at updated_at attempt "
    "last_seq budget waiting_for"
)


def test_a_run_is_started_and_its_json_is_that_of_the_contract(ask: Asking) -> None:
    """Every field that the contract names is there, under that name."""
    answer = ask.http.post("/v1/runs", json={"name": "double", "input": {"number": 4}, "labels": {"a": "b"}})
    assert answer.status_code == 201
    run = ask.ended(answer.json()["id"])
    assert answer.headers["location"] == f"/v1/runs/{run['id']}"
    assert set(FIELDS.split()) <= set(run)
    assert set(run) == set(RunInfo.__struct_fields__)
    assert (run["status"], run["input"], run["result"], run["labels"]) == ("completed", {"number": 4}, 8, {"a": "b"})


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-Execution-ID"])
def test_the_same_key_gives_the_same_run_and_another_input_a_conflict(ask: Asking, header: str) -> None:
    """201 once, 200 from then on, and 409 naming what differs."""
    key = {header: f"key of {header}"}
    first = ask.http.post("/v1/runs", json={"name": "double", "input": 1}, headers=key)
    again = ask.http.post("/v1/runs", json={"name": "double", "input": 1}, headers=key)
    other = ask.http.post("/v1/runs", json={"name": "double", "input": 2}, headers=key)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json()["id"] == again.json()["id"] == other.json()["error"]["run"]
    assert other.json()["error"]["code"] == "conflict"
    assert other.json()["error"]["differs"] == ["input"]


def test_of_many_starts_at_once_under_one_key_one_says_created(ask: Asking) -> None:
    """Whoever asks at the same time gets the same run, and exactly one is told that it began it."""
    with ThreadPoolExecutor(8) as pool:
        body = {"name": "double", "input": 1, "key": "at once"}
        answers = list(pool.map(lambda _: ask.http.post("/v1/runs", json=body), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_a_function_that_is_not_here_is_not_found_and_a_wrong_input_is_refused(ask: Asking) -> None:
    """Both say what there is instead."""
    missing = ask.http.post("/v1/runs", json={"name": "treble"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert "double" in missing.json()["error"]["hint"]
    wrong = ask.http.post("/v1/runs", json={"name": "double", "input": "four"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_input")
    assert "double(number: int)" in wrong.json()["error"]["hint"]


def test_a_budget_goes_with_a_start(ask: Asking) -> None:
    """What a run may spend is given by the names that Python has, and anything else is refused."""
    given = ask.http.post("/v1/runs", json={"name": "double", "input": 1, "budget": {"steps": 3}})
    assert given.json()["budget"]["steps"]["total"] == 3
    refused = ask.http.post("/v1/runs", json={"name": "double", "input": 1, "budget": {"stops": 3}})
    assert refused.status_code == 400


def test_runs_are_listed_by_pages_without_a_gap_or_a_repeat(ask: Asking) -> None:
    """`next` leads through all of them, newest first, and is null on the last page."""
    started = [ask.start("double", number) for number in range(5)]
    listed, before = list[str](), ""
    while True:
        page = ask.http.get(f"/v1/runs?name=double&limit=2{before}").json()
        listed += [run["id"] for run in page["runs"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert listed == sorted(listed, reverse=True)
    assert listed[:5] == started[::-1]
    assert len(set(listed)) == len(listed)


def test_runs_are_found_by_label_and_status(ask: Asking) -> None:
    """Filters are those of the client."""
    run = ask.http.post("/v1/runs", json={"name": "fails", "labels": {"who": "me"}}).json()["id"]
    ask.events(run)
    assert [each["id"] for each in ask.http.get("/v1/runs?status=failed&label=who=me").json()["runs"]] == [run]
    assert ask.http.get("/v1/runs?status=odd").status_code == 400
    assert ask.http.get("/v1/runs?colour=blue").status_code == 400


def test_a_cancelled_run_ends_and_says_so_on_its_stream(ask: Asking) -> None:
    """Cancel is a verb of its own, and whoever watches sees the end."""
    run = ask.start("waits")
    with ask.stream(run):
        pass  # a reader that leaves cancels nothing
    said = ask.http.post(f"/v1/runs/{run}/cancel", json={"reason": "enough", "by": "ada"})
    assert said.json() == {"run": run, "accepted": True}
    assert ask.ended(run)["status"] == "cancelled"
    assert ask.http.post(f"/v1/runs/{run}/cancel").json() == {"run": run, "accepted": False}


def test_a_reader_that_leaves_cancels_nothing(ask: Asking, served: Served) -> None:
    """A disconnect is not a verb."""
    run = ask.start("waits")
    ask.events(run, until="RunStarted")
    ask.http.post(f"/v1/runs/{run}/signals/go", json={"value": 5})
    assert ask.ended(run)["result"] == 5


def test_an_ended_run_is_deleted_and_its_key_stays_taken(ask: Asking) -> None:
    """What is gone is not found, and does not come back under its key."""
    run = ask.start("double", 3, key="to delete")
    ask.ended(run)
    assert ask.http.delete(f"/v1/runs/{run}").status_code == 204
    assert ask.http.get(f"/v1/runs/{run}").status_code == 404
    assert ask.http.delete(f"/v1/runs/{run}").status_code == 404
    again = ask.http.post("/v1/runs", json={"name": "double", "input": 3, "key": "to delete"})
    assert again.status_code == 409


def test_a_tree_tells_of_children_and_their_budgets(ask: Asking) -> None:
    """A parent's child stands below it, with what it was given."""
    run = ask.start("parent")
    ask.ended(run)
    tree = ask.http.get(f"/v1/runs/{run}/tree").json()
    assert tree["run"]["id"] == run
    [child] = tree["children"]
    assert (child["name"], child["status"], child["budget"]["steps"]["total"]) == ("double", "completed", 5)
