"""Real processes: one has a checkpoint at a time, and however it ends, the next goes on with what it saved."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import checkpoint
from holdfast.core.errors import CheckpointOwned

LOOPING = Path(__file__).parent / "looping.py"
_SECONDS = 60.0
ENDS: dict[str, tuple[int | None, int, str]] = {
    "sigterm": (signal.SIGTERM, 143, "interrupted: SystemExit: 143"),
    "sigint": (signal.SIGINT, -signal.SIGINT, "interrupted: KeyboardInterrupt"),
    "exit": (None, 3, "interrupted: SystemExit: 3"),
    "atexit": (None, 0, "interrupted: SystemExit: the interpreter ended"),
    "async sigterm": (signal.SIGTERM, 143, "interrupted: CancelledError"),
}
"""How a loop is shut down: by which signal, with which status it ends, and what is told of it."""


@contextlib.contextmanager
def looping(address: str, how: str, every: float = 1000.0) -> Iterator[subprocess.Popen[str]]:
    """Start a loop, and end it with the block."""
    process = subprocess.Popen(
        [sys.executable, str(LOOPING), address, how, str(every)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=_SECONDS)


def waits(process: subprocess.Popen[str]) -> None:
    """Return when the loop has saved and waits."""
    assert process.stdout is not None
    for line in process.stdout:
        if line == "waits\n":
            return
    assert process.stderr is not None
    raise AssertionError(process.stderr.read())


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_two_processes_cannot_have_one_checkpoint(store: str, request: pytest.FixtureRequest) -> None:
    """The second is refused by an error that names the first; the list of what was left has nothing that is alive."""
    address = request.getfixturevalue("file" if store == "sqlite" else "postgres_store")
    with looping(address, "wait") as process:
        waits(process)
        with (
            pytest.raises(
                CheckpointOwned, match=f"checkpoint 'ticket-42' is open in process {process.pid} on "
            ) as refused,
            checkpoint.open("ticket-42", store=address),
        ):
            pass
        assert (refused.value.pid, refused.value.checkpoint) == (process.pid, "ticket-42")
        assert list(checkpoint.interrupted(store=address)) == []
        process.kill()
        process.wait(_SECONDS)
        [left] = checkpoint.interrupted(store=address)
        assert (left.id, left.pid, left.attempts, left.version) == ("ticket-42", process.pid, 1, "7")
        assert (left.iteration, left.phase, left.messages, dict(left.labels)) == (1, "model", 1, {"team": "mail"})
        with checkpoint.open("ticket-42", store=address) as saved:
            assert (saved.load(), saved.attempt) == (["one"], 2)


@pytest.mark.parametrize("how", ENDS)
def test_a_shutdown_keeps_it_and_writes_what_was_put_off(file: str, how: str) -> None:
    """SIGTERM, Ctrl-C, `sys.exit` and the interpreter's end: the program ends as it would, and nothing is lost."""
    number, status, reason = ENDS[how]
    with looping(file, how) as process:
        if number is not None:
            waits(process)
            process.send_signal(number)
        out, err = process.communicate(timeout=_SECONDS)
        assert process.returncode == status, out + err
    [left] = checkpoint.interrupted(store=file)
    assert left.reason.startswith(reason)
    assert (left.iteration, left.phase, left.messages) == (2, "tools", 2)
    with checkpoint.open("ticket-42", store=file) as saved:
        assert saved.load() == ["one", "two"]


@pytest.mark.parametrize("how", ["raise", "end"])
def test_any_other_end_ends_the_checkpoint(file: str, how: str) -> None:
    """An exception fails it and success completes it, with what was put off; nothing is left to go on with."""
    with looping(file, how) as process:
        _, err = process.communicate(timeout=_SECONDS)
        assert (process.returncode, "the loop's own" in err) == ((0, False) if how == "end" else (1, True))
    assert list(checkpoint.interrupted(store=file)) == []
    with hf.open(file, work=False) as runtime:
        [run] = runtime.wait(runtime.runs(name="holdfast:checkpoint"))
        assert run.status == ("completed" if how == "end" else "failed")
    with checkpoint.open("ticket-42", store=file) as saved:
        assert saved.load() is None


def test_what_was_under_way_at_a_kill_is_seen_by_whoever_goes_on(file: str) -> None:
    """The tool is named, with what was saved before it; it is not called again without a word."""
    with looping(file, "kill in effect") as process:
        process.communicate(timeout=_SECONDS)
        assert process.returncode == -signal.SIGKILL
    [left] = checkpoint.interrupted(store=file)
    assert list(left.doubts) == ["send mail"]
    assert left.messages == 2
    with checkpoint.open("ticket-42", store=file) as saved:
        assert dict(saved.doubts) == {"send mail": "the process died before the outcome was recorded"}
        with pytest.raises(hf.InDoubt, match="send mail"):
            saved.effect("send mail", print)


def test_sigterm_means_to_a_program_what_it_meant_before(file: str) -> None:
    """A handler of the program's own is not touched, and none of ours is left behind."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with checkpoint.open("a", store=file), checkpoint.open("b", store=file):
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with checkpoint.open("a", store=file):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
