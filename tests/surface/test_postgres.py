"""The same commands on a store in PostgreSQL."""

import signal

import pytest

from tests.surface.command import Shell


@pytest.fixture
def pg(shell: Shell, postgres_address: str, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell whose store is a fresh schema."""
    monkeypatch.setenv("HOLDFAST_STORE", postgres_address)
    return shell


def test_a_killed_run_goes_on_where_it_was(pg: Shell) -> None:
    """Kill the command and type it again: the same run, and what was recorded is not performed again."""
    (pg.folder / "gate").touch()
    started = pg.start("run", "program.py:hold", "1", "--key", "k")
    started.wait_for("at the gate")
    started.end(signal.SIGKILL)
    (pg.folder / "gate").unlink()
    again = pg("run", "program.py:hold", "1", "--key", "k")
    assert again.status == 0
    shown = pg("show", "--key", "k", "--json").value
    assert (shown["status"], shown["attempt"]) == ("completed", 2)


def test_looking_commands_tell_what_is_there(pg: Shell) -> None:
    """ls, show, tail, verify, migrate and doctor know no difference between databases."""
    assert pg("run", "program.py:count", "1", "--key", "k").status == 0
    assert [run["key"] for run in pg("ls", "--json").values] == ["k"]
    assert pg("show", "--key", "k").status == 0
    assert pg("tail", "--key", "k", "--json").values[-1]["type"] == "RunFinished"
    assert pg("verify").status == 0
    assert pg("migrate", "--restored", "--json").value["epoch"] == 2
    assert pg("tail", "--key", "k", "--json").values[-1]["id"].endswith("@2")
    found = {check["check"]: check["status"] for check in pg("doctor", "--json").values}
    assert found == dict.fromkeys(("python", "store", "durability", "workers", "runs"), "ok")


def test_a_schema_without_a_store_is_not_found(pg: Shell) -> None:
    """Looking makes nothing, and the message says where it looked."""
    ran = pg("ls")
    assert ran.status == 5
    assert "there is no store at postgresql://" in ran.err
