"""The killer: a trial dies where it is told to, and tells how it ended."""

import errno
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import apsw
import pytest

from holdfast.testing.killer import AtCall, AtPoint, FailAt, Killer, KillerLost, Outcome, Points, TrialFailed

ROWS = 3


def crash_point(name: str) -> None:
    """The seam of the programs below."""


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """One warm server for all trials of this file."""
    with Killer(preload=[__name__], seam=f"{__name__}:crash_point") as killer:
        yield killer


def add_rows(path: str) -> int:
    """Add rows from a writer thread until there are `ROWS`, each with two points, and say how many there are."""

    def write() -> None:
        for row in range(count_rows(path), ROWS):
            crash_point("before commit")
            database.execute("INSERT INTO rows VALUES (?)", (row,))
            crash_point("after commit")

    database = apsw.Connection(path)
    database.pragma("journal_mode", "wal")
    database.pragma("synchronous", "full")
    database.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY)")
    writer = threading.Thread(target=write)
    writer.start()
    writer.join()
    return count_rows(path)


def count_rows(path: str) -> int:
    """Return the number of rows, having checked that they are the first ones and that the file is sound."""
    database = apsw.Connection(path)
    assert database.pragma("integrity_check") == "ok"
    if not database.table_exists(None, "rows"):
        return 0
    rows = [row for (row,) in database.execute("SELECT n FROM rows ORDER BY n")]
    assert rows == list(range(len(rows)))
    return len(rows)


def test_a_child_killed_around_any_file_call_leaves_a_database_that_recovers(killer: Killer, tmp_path: Path) -> None:
    """Every call is a place to die at, before and after it, and the rows that follow one run's death are the same."""
    whole = tmp_path / "whole"
    whole.mkdir()
    calls = killer.count(add_rows, str(whole / "db"), watch=whole).calls
    assert calls > 20
    for nth in range(1, calls + 1):
        for when in ("before", "after"):
            place = tmp_path / f"{nth}-{when}"
            place.mkdir()
            outcome = killer.run(add_rows, str(place / "db"), die=AtCall(nth, when), watch=place)
            assert (outcome.killed, outcome.calls) == (True, nth)
            assert killer.run(add_rows, str(place / "db")).result() == ROWS


def test_a_commit_is_lost_before_its_write_and_kept_after_it(killer: Killer, tmp_path: Path) -> None:
    """What a trial dies around is really there, or really is not."""
    where = str(tmp_path / "db")
    killer.run(add_rows, where, die=AtPoint(3))
    assert killer.run(count_rows, where).result() == 1
    killer.run(add_rows, where, die=AtPoint(2))
    assert killer.run(count_rows, where).result() == 2


def test_an_undisturbed_run_tells_how_many_points_there_are(killer: Killer, tmp_path: Path) -> None:
    """Counting first is what lets a test enumerate every death."""
    outcome = killer.count(add_rows, str(tmp_path / "db"))
    assert (outcome.points, outcome.last, outcome.value) == (2 * ROWS, "after commit", ROWS)


def test_a_point_can_be_chosen_by_its_name(killer: Killer, tmp_path: Path) -> None:
    """The second commit is the second commit, however many points lie between."""
    where = str(tmp_path / "db")
    outcome = killer.run(add_rows, where, die=AtPoint(2, named="after commit"))
    assert (outcome.killed, outcome.points, outcome.last) == (True, 4, "after commit")
    assert killer.run(count_rows, where).result() == 2


def test_calls_can_be_chosen_by_their_names(killer: Killer, tmp_path: Path) -> None:
    """Dying at the first sync means the first sync, not the first call."""
    syncs = frozenset({"fsync", "fdatasync"})
    outcome = killer.run(add_rows, str(tmp_path / "db"), die=AtCall(1, "before", names=syncs), watch=tmp_path)
    assert outcome.killed
    assert "sync on" in outcome.last


def test_a_recovery_can_be_killed_as_well(killer: Killer, tmp_path: Path) -> None:
    """Recovery is a program like any other: it dies at each of its calls, and the next one recovers."""
    where = str(tmp_path / "db")
    killer.run(add_rows, where, die=AtPoint(4))
    nth = 1
    while killer.run(add_rows, where, die=AtCall(nth, "after"), watch=tmp_path).killed:
        nth += 1
    assert nth > 10
    assert killer.run(count_rows, where).result() == ROWS


def append_and_sync(path: str) -> list[str]:
    """Append three times with a sync each and return what became of each."""
    became: list[str] = []
    with Path(path).open("ab", buffering=0) as file:
        for _ in range(3):
            try:
                file.write(b"x")
                os.fsync(file.fileno())
                became.append("synced")
            except OSError as error:
                became.append(errno.errorcode[error.errno or 0])
    return became


@pytest.mark.parametrize(("when", "left"), [("before", b""), ("after", b"x")])
def test_before_and_after_are_the_two_sides_of_one_call(
    killer: Killer, tmp_path: Path, when: Literal["before", "after"], left: bytes
) -> None:
    """The same call, one step earlier or later, is the difference between lost and written."""
    die = AtCall(1, when, names=frozenset({"write"}))
    assert killer.run(append_and_sync, str(tmp_path / "file"), die=die, watch=tmp_path).killed
    assert (tmp_path / "file").read_bytes() == left


@pytest.mark.parametrize(
    ("lasting", "became"), [(False, ["synced", "EIO", "synced"]), (True, ["synced", "EIO", "EIO"])]
)
def test_a_disk_can_fail_once_or_from_then_on(killer: Killer, tmp_path: Path, lasting: bool, became: list[str]) -> None:
    """One bad sync and a dead disk are different faults, and a program must survive both."""
    fail = FailAt(2, errno.EIO, names=frozenset({"fsync"}), lasting=lasting)
    assert killer.run(append_and_sync, str(tmp_path / "file"), fail=fail, watch=tmp_path).result() == became


def complain(word: str) -> None:
    """Print, then raise."""
    print(f"about to say {word}")
    raise ValueError(f"no {word}")


@pytest.mark.parametrize("traced", [False, True])
def test_a_raising_target_comes_back_with_its_traceback_and_output(
    killer: Killer, tmp_path: Path, traced: bool
) -> None:
    """A failing trial must be as easy to read as a failing test."""
    outcome = killer.run(complain, "sense", watch=tmp_path if traced else None)
    assert (outcome.killed, outcome.stuck, outcome.exit_status) == (False, False, 1)
    assert outcome.output == "about to say sense\n"
    assert outcome.error is not None
    assert outcome.error.endswith("ValueError: no sense\n")
    assert "in complain" in outcome.error
    with pytest.raises(TrialFailed, match="ValueError: no sense"):
        outcome.result()


def wait_for_ever() -> None:
    """Wait for what nobody will set."""
    threading.Event().wait()


@pytest.mark.parametrize("traced", [False, True])
def test_a_stuck_child_is_ended_and_reported_with_its_stack(tmp_path: Path, traced: bool) -> None:
    """A hang is a finding, not the end of the test run."""
    with Killer(preload=[__name__], timeout_seconds=0.5) as hasty:
        outcome = hasty.run(wait_for_ever, watch=tmp_path if traced else None)
        assert (outcome.stuck, outcome.killed) == (True, False)
        assert "in wait_for_ever" in outcome.output
        assert hasty.run(count_trials).result() == 1


def leave_running() -> int:
    """Start a subprocess in a session of its own and do not wait for it."""
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True).pid


@pytest.mark.parametrize("traced", [False, True])
def test_what_a_trial_leaves_running_ends_with_it(killer: Killer, tmp_path: Path, traced: bool) -> None:
    """A thousand trials must not leave a thousand processes."""
    left = killer.run(leave_running, watch=tmp_path if traced else None).result()
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)


trials = 0


def count_trials() -> int:
    """Return how many trials this process has seen."""
    global trials
    trials += 1
    return trials


def test_trials_share_nothing(killer: Killer) -> None:
    """Each trial begins with the modules as they were imported."""
    assert [killer.run(count_trials).result() for _ in range(3)] == [1, 1, 1]


async def speak() -> str:
    """Return a word, the async way."""
    return "word"


def test_an_async_target_gets_an_event_loop(killer: Killer) -> None:
    """Most of what is killed is async."""
    assert killer.run(speak).result() == "word"


def kill_parent(sign_of_life: str) -> None:
    """Kill the server that forked this trial, and go on for as long as one can."""
    held = os.open(sign_of_life, os.O_WRONLY)
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait()
    os.close(held)


@pytest.mark.parametrize("traced", [False, True])
def test_a_trial_ends_with_its_server_and_the_killer_says_so(tmp_path: Path, traced: bool) -> None:
    """An outcome that nobody saw is an error, and nothing goes on unseen."""
    watched, pipe = tmp_path / "watched", tmp_path / "pipe"
    watched.mkdir()
    os.mkfifo(pipe)
    life = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with Killer(preload=[__name__]) as short_lived:
        with pytest.raises(KillerLost, match="died"):
            short_lived.run(kill_parent, str(pipe), watch=watched if traced else None)
        with pytest.raises(KillerLost):
            short_lived.run(speak)
    ended = select.poll()
    ended.register(life, select.POLLHUP)
    assert ended.poll(10_000)
    os.close(life)


def test_a_target_in_a_file_on_no_path_is_found(killer: Killer, tmp_path: Path) -> None:
    """A test module that its runner loaded from a file can hold targets as well."""
    file = tmp_path / "on_no_path.py"
    file.write_text("def speak():\n    return 'from a file'\n")
    spec = importlib.util.spec_from_file_location("on_no_path", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_no_path"] = module
    spec.loader.exec_module(module)
    assert killer.run(module.speak).result() == "from a file"


def test_a_preload_that_cannot_be_imported_is_reported_and_leaves_no_server() -> None:
    """A mistaken name is told at once, with the import's own words."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        Killer(preload=["no_such_module"])
    assert children.read_text() == before


def test_a_module_that_starts_a_thread_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork keeps one thread only, so the trial would run a program that is missing a part."""
    source = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "threaded_at_import.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with Killer(preload=["threaded_at_import"]) as killer, pytest.raises(RuntimeError, match="started 1 thread"):
        killer.run(count_trials)


@pytest.mark.parametrize("target", [lambda: None, Points().arm])
def test_a_target_that_cannot_be_found_by_name_is_refused(killer: Killer, target: Callable[..., None]) -> None:
    """The server imports the target, so it must have a place to be imported from."""
    with pytest.raises(ValueError, match="at the top of a module"):
        killer.run(target)


@pytest.mark.parametrize("die", [AtCall(1), AtPoint(1)])
def test_a_strike_that_could_never_come_is_refused(die: AtCall | AtPoint) -> None:
    """A trial that silently runs to its end would pass for a survived death."""
    with Killer() as bare, pytest.raises(ValueError, match="needs a"):
        bare.run(count_trials, die=die)


def test_a_seam_that_is_not_there_is_refused() -> None:
    """A renamed seam must not turn every trial into an undisturbed run."""
    seam = f"{__name__}:no_such_point"
    with Killer(preload=[__name__], seam=seam) as killer, pytest.raises(TrialFailed, match="there is no seam"):
        killer.count(count_trials)


def test_an_outcome_of_a_killed_trial_has_no_result(killer: Killer, tmp_path: Path) -> None:
    """Forgetting to look at `killed` must not pass for success."""
    outcome: Outcome = killer.run(add_rows, str(tmp_path / "db"), die=AtPoint(1))
    with pytest.raises(TrialFailed, match=r"was killed \(last: before commit\)"):
        outcome.result()
