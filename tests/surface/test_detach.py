"""`holdfast run --detach`: the run is there, and nothing of it was performed here."""

import pytest

from tests.surface.command import Shell


def test_a_run_is_created_and_left_to_a_worker(shell: Shell) -> None:
    """Whoever puts work in a queue gets the id at once, and the work is done by somebody else."""
    left = shell("run", "program.py:count", "5", "--detach")
    assert left.status == 0
    run = left.out.strip()
    assert "no worker is running: `holdfast worker program.py` takes it up" in left.err
    assert shell.ledger() == []
    assert shell("show", run, "--json").value["status"] == "queued"
    worker = shell.start("worker", "program.py")
    worker.wait_for("serving")
    tail = shell.start("tail", run, "--json")
    assert tail.end().status == 0
    worker.end(15)
    assert shell("show", run, "--json").value["result"] == 7


APPS = """
import holdfast as hf

@hf.durable
async def child(ctx: hf.Context) -> int:
    return 1

@hf.durable
async def parent(ctx: hf.Context) -> int:
    return await ctx.run(child)

@hf.durable
async def alone(ctx: hf.Context) -> int:
    return 1

family = hf.App(parent, child)
"""


@pytest.mark.parametrize(
    ("more", "target", "serve"),
    [
        ("", "apps.py:parent", "apps.py"),
        ("", "apps:parent", "apps"),
        ("", "apps.py:alone", "apps.py:alone"),
        ("other = hf.App(alone)\n", "apps.py:parent", "apps.py:family"),
    ],
)
def test_the_worker_that_is_advised_serves_the_children_too(
    shell: Shell, more: str, target: str, serve: str
) -> None:  # fmt: skip
    """A worker of the one function would leave a parent waiting for ever; one of all that belongs together does not."""
    (shell.folder / "apps.py").write_text(APPS + more)
    left = shell("run", target, "--detach")
    assert f"`holdfast worker {serve}` takes it up" in left.err


def test_json_prints_the_run(shell: Shell) -> None:
    """A program that queues another learns all of it from one value."""
    left = shell(
        "run", "program.py:count", "--input", '{"number": 5}', "--detach", "--label", "team=a", "--key", "k", "--json"
    )
    assert left.err == ""
    assert (left.value["status"], left.value["input"]) == ("queued", {"number": 5})
    assert (left.value["key"], left.value["labels"]) == ("k", {"team": "a"})


def test_the_same_key_gives_the_same_run(shell: Shell) -> None:
    """A caller that tries again queues nothing twice, and one that wants something else is refused."""
    first, again = (shell("run", "program.py:count", "5", "--key", "k", "--detach") for _ in range(2))
    assert first.out == again.out
    assert "the key belongs to this run, which is queued" in again.err
    other = shell("run", "program.py:count", "6", "--key", "k", "--detach", "--json")
    assert (other.status, other.error["code"]) == (4, "conflict")


def test_a_delayed_run_is_due_later(shell: Shell) -> None:
    """It is put off in the store, and no process need wait for it."""
    left = shell("run", "program.py:count", "5", "--detach", "--delay", "2h")
    assert "count is due in 2 h 0 min" in left.err
    assert shell("run", "program.py:count", "5", "--detach", "--delay", "soon").status == 2


def test_a_wrong_argument_is_refused_before_there_is_a_run(shell: Shell) -> None:
    """Nobody finds out from a worker's log that the input was wrong."""
    assert shell("run", "program.py:count", "five", "--detach").status == 2
    assert shell("run", "program.py:count", "--detach", "--resume", "0199f3a2").status == 2
    assert shell("ls").status == 5
