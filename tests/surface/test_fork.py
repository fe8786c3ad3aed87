"""`holdfast fork`, and `holdfast retry` of a run that failed."""

import pytest

from holdfast.client.archive import read_archive
from tests.surface.command import Shell

PROGRAM = """
import holdfast as hf
from program import HERE, note

def reserve(name: str) -> str:
    note(f"reserve {name}")
    return name

def pay(name: str) -> str:
    note(f"pay {name}")
    if not (HERE / "bank").exists():
        raise ConnectionError("the bank does not answer")
    return f"{name} paid"

@hf.durable
async def order(ctx: hf.Context, name: str) -> str:
    await ctx.step(reserve, name)
    return await ctx.step(pay, name, effect="keyed")
"""


@pytest.fixture
def failed(shell: Shell) -> str:
    """A run that failed, called `acme`."""
    (shell.folder / "ordering.py").write_text(PROGRAM)
    assert shell("run", "ordering.py:order", "acme", "--key", "acme").status == 1
    return str(shell("ls", "--json").value["id"])


def done(shell: Shell) -> list[str]:
    """Return what the program really did."""
    return [line.split(" ", 1)[1] for line in (shell.folder / "ledger.txt").read_text().splitlines()]


def test_a_failed_run_is_tried_again_under_its_key(shell: Shell, failed: str) -> None:
    """The same command that started it goes on with the new run, and nothing that was done is done again."""
    assert f"holdfast retry {failed}" in shell("show", failed).out
    (shell.folder / "bank").touch()
    retried = shell("retry", failed, "--by", "ann", "--json").value
    assert retried["run"] == failed
    again = retried["fork"]
    assert again not in (None, failed)
    assert shell("run", "ordering.py:order", "acme", "--key", "acme").out == '"acme paid"\n'
    assert done(shell) == ["reserve acme", "pay acme", "pay acme"]
    assert shell("show", "--key", "acme", "--json").value["id"] == again
    assert "nothing is wrong" in shell("verify").err


def test_base_and_fork_name_each_other(shell: Shell, failed: str) -> None:
    """Whoever looks at one finds the other: drawn, listed, told as events, and as JSON."""
    again = shell("retry", failed, "--by", "ann", "--json").value["fork"]
    other = shell("fork", failed, "--at", "2", "--json").value
    assert (other["base"], other["base_seq"]) == (failed, 2)
    base, fork = (shell("show", run, "--json").value for run in (failed, again))
    assert base["forks"] == [
        {"id": again, "at": 4, "retry": True},
        {"id": other["run"], "at": 2, "retry": False},
    ]
    assert (fork["base"], fork["base_seq"], fork["key"], base["key"]) == (failed, 4, "acme", None)
    drawn = shell("show", failed).out
    assert f"retry   {again}, behind entry 4" in drawn
    assert f"fork    {other['run']}, behind entry 2" in drawn
    assert "holdfast retry" not in drawn
    assert f"base    {failed}, up to its entry 4" in shell("show", again).out
    assert "1 step replayed from the journal" in shell("show", again).out
    assert f"forked from {failed}" in shell("ls").out
    assert {line["base"] for line in shell("ls", "--json").values} == {None, failed}
    assert f"forked behind entry 4 of run {failed}, by ann" in shell("tail", again, "--no-follow").out


@pytest.mark.parametrize("at", [99, 0, 5], ids=["beyond the head", "no entry", "its ending"])
def test_a_fork_at_no_place_to_go_on_from_is_a_usage_error_with_a_way_out(shell: Shell, failed: str, at: int) -> None:
    """The reason and the way out are told, and nothing is started."""
    refused = shell("fork", failed, "--at", at, "--json")
    assert refused.status == 2
    assert refused.error["code"] == "invalid_input"
    assert refused.error["hint"]
    assert len(shell("ls", "--json").values) == 1


def test_what_cannot_be_retried_or_forked_is_refused(shell: Shell, failed: str) -> None:
    """A run that completed is a conflict, one that is not there is not found."""
    (shell.folder / "bank").touch()
    shell("retry", failed)
    shell("run", "ordering.py:order", "acme", "--key", "acme")
    assert "had ended before: completed" in shell("retry", "--key", "acme").err
    assert shell("retry", "--key", "acme").status == 4
    assert shell("retry", failed, "--json").value["fork"] is not None
    assert shell("delete", failed).status == 0
    assert shell("fork", failed).status == 3
    assert shell("retry", failed).status == 3


def test_an_archive_of_a_fork_is_whole_without_its_base(shell: Shell, failed: str) -> None:
    """It holds the entries that it shares, is accepted by verify, and can be looked at, when the base is long gone."""
    (shell.folder / "bank").touch()
    again = shell("retry", failed, "--json").value["fork"]
    shell("run", "ordering.py:order", "acme", "--key", "acme")
    assert shell("delete", failed).status == 0
    archive = shell.folder / "archive.jsonl"
    archive.write_text(shell("export", again).out)
    assert shell("verify", archive).status == 0
    [run] = read_archive(str(archive))
    assert [entry.seq for entry in run.entries] == list(range(1, 9))
    assert [(share.up_to, share.run) for share in run.shares] == [(4, failed)]
    assert f"base    {failed}, up to its entry 4" in shell("show", again, "--archive", archive).out
    collected = shell("gc", "--older-than", "0s", "--archive", shell.folder / "all.jsonl.gz", "--json")
    assert collected.value["deleted"] == 1
    assert shell("verify", shell.folder / "all.jsonl.gz").status == 0
    assert shell("ls", "--json").values == []
    assert "nothing is wrong" in shell("verify").err or "no runs" in shell("verify").err
