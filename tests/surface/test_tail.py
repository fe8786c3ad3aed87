"""`holdfast tail`: a run's events from any cursor, live until it ends."""

import signal

import pytest

from tests.surface.command import Shell


def test_json_events_have_one_form(shell: Shell) -> None:
    """What the command prints is what the server sends: id, run, seq, type, v, at, data."""
    run = shell("run", "program.py:count", "1", "--json").value["id"]
    events = shell("tail", run, "--json").values
    assert [list(event) for event in events] == [["id", "run", "seq", "type", "v", "at", "data"]] * 4
    assert [event["type"] for event in events] == ["RunStarted", "StepCompleted", "StepCompleted", "RunFinished"]
    assert [(event["id"], event["seq"]) for event in events] == [("1", 1), ("2", 2), ("3", 3), ("4", 4)]
    assert {event["run"] for event in events} == {run}
    assert events[1]["data"]["step"] == "0/add#1"
    assert events[1]["data"]["value"] == 2
    assert not {"id", "run", "seq", "at"} & set(events[1]["data"])
    assert events[1]["at"].endswith("Z")


def test_a_cursor_gets_exactly_the_rest(shell: Shell) -> None:
    """Reading on from any event loses nothing and repeats nothing."""
    run = shell("run", "program.py:count", "1", "--json").value["id"]
    whole = shell("tail", run, "--json").out.splitlines()
    for seen in range(len(whole) + 1):
        assert shell("tail", run, "--json", "--after", str(seen)).out.splitlines() == whole[seen:]


def test_people_get_a_line_for_every_event(shell: Shell) -> None:
    """Each line has the event's id, so that a reader can go on from it."""
    shell("run", "program.py:greet", "Ada", "--key", "k")
    lines = shell("tail", "--key", "k").out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert 'RunStarted  greet {"name":"Ada"}' in lines[0]
    assert lines[2].endswith("■ completed")


@pytest.mark.parametrize(
    ("cursor", "why"), [("x", "is not an event id"), ("99", "is ahead of the journal"), ("-1", "")]
)
def test_a_cursor_that_no_feed_sent_is_refused(shell: Shell, cursor: str, why: str) -> None:
    """A wrong cursor is never taken for the start."""
    run = shell("run", "program.py:count", "1", "--json").value["id"]
    ran = shell("tail", run, f"--after={cursor}")
    assert (ran.status, ran.out) == (2, "")
    assert why in ran.err
    assert shell("tail", run, f"--after={cursor}", "--json").error["code"] == "bad_cursor"


def test_it_follows_a_run_to_its_end_across_processes(shell: Shell) -> None:
    """A reader sees the run go on in another process and ends when the run does."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--key", "k")
    started.wait_for("at the gate")
    reader = shell.start("tail", "--key", "k", "--json")
    reader.wait_for('"0/add#1"', on="out")
    started.end(signal.SIGKILL)
    (shell.folder / "gate").unlink()
    shell("run", "program.py:hold", "1", "--key", "k")
    ran = reader.end()
    assert ran.status == 0
    assert [event["seq"] for event in ran.values] == [1, 2, 3, 4, 5, 6]
    assert ran.values[2]["type"] == "RunResumed"


def test_a_preview_has_the_same_form_and_is_forgotten_with_its_process(shell: Shell) -> None:
    """Chunks come with an id to go on from; a reader that holds one of a dead process is told to forget it."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:talk", "2", "--key", "k")
    started.wait_for("at the gate")
    reader = shell.start("tail", "--key", "k", "--json")
    reader.wait_for('"word 1"', on="out")
    chunks = reader.end(signal.SIGINT).values[1:]
    started.end(signal.SIGKILL)
    assert [(chunk["id"], chunk["seq"], chunk["type"], chunk["v"]) for chunk in chunks] == [
        ("1:1:1", 1, "chunk", 1),
        ("1:1:2", 1, "chunk", 1),
    ]
    assert chunks[1]["data"] == {"step": "0/speak#1", "attempt": 1, "offset": 1, "value": "word 1"}
    (shell.folder / "gate").unlink()
    shell("run", "program.py:talk", "2", "--key", "k")
    rest = shell("tail", "--key", "k", "--json", "--after", "1:1:1").values
    assert (rest[0]["id"], rest[0]["type"]) == (None, "preview.reset")
    assert [event["type"] for event in rest[1:]] == ["RunResumed", "StepCompleted", "RunFinished"]
    assert "forget the chunks" in shell("tail", "--key", "k", "--after", "1:1:1").out


def test_without_following_it_ends_where_the_journal_does(shell: Shell) -> None:
    """--no-follow reads what is there and goes, though the run is not over."""
    run = shell("run", "program.py:pay", "5", "--json").error["run"]
    ran = shell("tail", run, "--no-follow")
    assert ran.status == 0
    assert "in doubt" in ran.out


def test_ctrl_c_prints_the_command_that_reads_on(shell: Shell) -> None:
    """A reader that was interrupted goes on after the last event it saw."""
    run = shell("run", "program.py:pay", "5", "--json").error["run"]
    reader = shell.start("tail", run)
    reader.wait_for("rests", on="out")
    ran = reader.end(signal.SIGINT)
    assert ran.status == 130
    assert ran.err.endswith(f"holdfast tail {run} --after 5\n")


def test_an_unknown_run_is_not_found(shell: Shell) -> None:
    """There is nothing to follow where there is no run."""
    shell("run", "program.py:count", "1")
    assert shell("tail", "00000000-0000-7000-8000-000000000000").status == 3
    assert shell("tail").status == 2
