"""`holdfast verify`: damage is named by run and entry."""

from tests.surface.command import Shell, damage


def test_a_sound_store_exits_with_0(shell: Shell) -> None:
    """Nothing wrong is said as such, with how much was looked at."""
    run = shell("run", "program.py:count", "1", "--json").value["id"]
    shell("run", "program.py:fail")
    ran = shell("verify")
    assert (ran.status, ran.out) == (0, "")
    assert "2 runs: nothing is wrong" in ran.err
    assert f"run {run}: nothing is wrong" in shell("verify", run[:13]).err
    assert (shell("verify", "--json").out, shell("verify", "--json").err) == ("", "")


def test_a_damaged_entry_is_named_and_the_exit_status_is_1(shell: Shell) -> None:
    """One altered byte is found, in the run and the entry where it is, and in no other."""
    run = shell("run", "program.py:count", "1", "--json").value["id"]
    sound = shell("run", "program.py:count", "2", "--json").value["id"]
    damage(shell.folder / "holdfast.db", run, 2)
    ran = shell("verify")
    assert ran.status == 1
    assert f"✗ run {run}, entry 2: " in ran.out
    assert sound not in ran.out
    assert "Restore" in ran.err
    findings = shell("verify", "--json").values
    assert [(finding["run"], finding["seq"]) for finding in findings] == [(run, 2)]
    assert shell("verify", run).status == 1
    assert shell("verify", sound).status == 0


def test_a_damaged_run_is_refused_by_name_wherever_it_is_read(shell: Shell) -> None:
    """Damage is never drawn over, and is no traceback either."""
    run = shell("run", "program.py:count", "1", "--json").value["id"]
    damage(shell.folder / "holdfast.db", run, 2)
    for words in (["show", run], ["tail", run]):
        ran = shell(*words)
        assert ran.status == 1
        assert f"run {run}, entry 2" in ran.err


def test_an_unknown_run_is_not_found(shell: Shell) -> None:
    """There is nothing to verify where there is no run."""
    shell("run", "program.py:count", "1")
    assert shell("verify", "00000000-0000-7000-8000-000000000000").status == 3
    assert shell("verify", "?").status == 3
