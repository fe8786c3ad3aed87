"""Tracing a child's file calls: what is seen, what can be stopped and what can be made to fail."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing import ptrace
from holdfast.testing.killer import Killer, TrialFailed
from holdfast.testing.syscalls import Action, Call, Fail, Go, Traced, TracingUnavailable, trace, within


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """A process without other children, which tracing asks for."""
    with Killer(preload=[__name__]) as killer:
        yield killer


def write_thrice(path: str, how: str) -> int:
    """Write one, two, three, each by the call named `how`."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    at = 0
    for word in (b"one", b"two", b"three"):
        match how:
            case "write":
                os.write(file, word)
            case "pwrite64":
                os.pwrite(file, word, at)
            case "writev":
                os.writev(file, [word[:1], word[1:]])
            case _:
                os.pwritev(file, [word[:1], word[1:]], at)
        at += len(word)
    return 0


def kill_at_second(directory: str, how: str, go: Go) -> Traced:
    """Trace `write_thrice` and kill it at its second write."""
    writes = 0

    def decide(call: Call) -> Action:
        nonlocal writes
        writes += call.name.startswith(how)
        return go if writes == 2 else Go.ON

    return trace(lambda: write_thrice(f"{directory}/words", how), decide, watch=within(directory))


@pytest.mark.parametrize("how", ["write", "pwrite64", "writev", "pwritev"])
@pytest.mark.parametrize(("go", "left"), [(Go.KILL_BEFORE, "one"), (Go.KILL_AFTER, "onetwo")])
def test_a_child_killed_around_a_write_leaves_the_file_without_or_with_it(
    killer: Killer, tmp_path: Path, how: str, go: Go, left: str
) -> None:
    """Before means that the call never happened, after that it did, and nothing later ever does."""
    traced = killer.run(kill_at_second, str(tmp_path), how, go).result()
    assert (tmp_path / "words").read_text() == left
    assert traced.exit_status == -signal.SIGKILL
    assert not traced.stuck


def fail_syncs_and_second_write(directory: str) -> list[str]:
    """Trace a program whose second write finds the disk full and whose fsync fails, and return what it saw."""
    seen, tell = os.pipe()

    def program() -> int:
        file = os.open(f"{directory}/words", os.O_CREAT | os.O_WRONLY)
        for work in (lambda: os.write(file, b"a"), lambda: os.write(file, b"b"), lambda: os.fsync(file)):
            try:
                work()
                os.write(tell, b"done ")
            except OSError as error:
                os.write(tell, errno.errorcode[error.errno or 0].encode() + b" ")
        return 0

    def decide(call: Call) -> Action:
        if call.name == "fsync":
            return Fail(errno.EIO)
        return Fail(errno.ENOSPC) if call.index == 3 else Go.ON

    trace(program, decide, watch=within(directory))
    return os.read(seen, 100).decode().split()


def test_an_injected_error_reaches_the_program_and_the_call_does_not_happen(killer: Killer, tmp_path: Path) -> None:
    """A disk that fails is told to the program as the kernel would tell it."""
    assert killer.run(fail_syncs_and_second_write, str(tmp_path)).result() == ["done", "ENOSPC", "EIO"]
    assert (tmp_path / "words").read_text() == "a"


def observe(directory: str, program: str) -> list[tuple[str, str, int | None, bytes | None, int]]:
    """Trace one of the programs below and return its calls: name, path below the directory, offset, data, result."""
    seen: list[tuple[str, str, int | None, bytes | None, int]] = []

    def done(call: Call, result: int) -> None:
        to = "" if call.to is None else " to " + call.to.removeprefix(directory + "/")
        if call.data is not None:
            assert call.length == len(call.data)
        seen.append((call.name, call.path.removeprefix(directory + "/") + to, call.offset, call.data, result))

    body = {"appending": appending, "relative": relative, "crowd": crowd, "reading": reading, "mistaken": mistaken}[
        program
    ]
    trace(lambda: body(directory), lambda call: Go.ON, watch=within(directory), done=done)
    return seen


def appending(directory: str) -> int:
    """Write at the end, at a place, and at the current position."""
    file = os.open(f"{directory}/log", os.O_WRONLY | os.O_APPEND)
    os.write(file, b"xyz")
    other = os.open(f"{directory}/log", os.O_RDWR)
    os.pwrite(other, b"Q", 1)
    os.lseek(other, 2, os.SEEK_SET)
    os.write(other, b"R")
    os.writev(other, [b"S", b"T"])
    os.ftruncate(other, 5)
    return 0


def test_a_recorded_call_carries_its_data_place_and_result(killer: Killer, tmp_path: Path) -> None:
    """Where a plain write lands follows from the file's state, and is known before it happens."""
    (tmp_path / "log").write_text("0123")
    assert killer.run(observe, str(tmp_path), "appending").result() == [
        ("write", "log", 4, b"xyz", 3),
        ("pwrite64", "log", 1, b"Q", 1),
        ("write", "log", 2, b"R", 1),
        ("writev", "log", 3, b"ST", 2),
        ("ftruncate", "log", None, None, 0),
    ]


def relative(directory: str) -> int:
    """Name files from the current directory, from a directory's descriptor and through a link."""
    os.chdir(directory)
    Path("sub").mkdir()
    sub = os.open("sub", os.O_RDONLY)
    os.close(os.open("new", os.O_CREAT, dir_fd=sub))
    Path("alias").symlink_to("sub")
    Path("alias/new").rename("moved")
    Path("sub/../moved").unlink()
    return 0


def test_a_path_is_the_same_however_the_program_names_it(killer: Killer, tmp_path: Path) -> None:
    """Relative paths, descriptors of directories and links all end at the file's own place."""
    seen = killer.run(observe, str(tmp_path), "relative").result()
    assert [(name.removesuffix("at"), path) for name, path, *_ in seen] == [
        ("mkdir", "sub"),
        ("open", "sub/new"),
        ("symlink", "alias"),
        ("rename", "sub/new to moved"),
        ("unlink", "moved"),
    ]


def crowd(directory: str) -> int:
    """Write from two threads and from a subprocess in a session of its own."""
    threads = [threading.Thread(target=Path(directory, name).write_text, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    script = f"open({directory + '/three'!r}, 'w').write('three')"
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, start_new_session=True)
    return 0


def test_threads_and_subprocesses_are_traced_with_the_child(killer: Killer, tmp_path: Path) -> None:
    """A writer thread's calls count like those of the thread that started it."""
    seen = killer.run(observe, str(tmp_path), "crowd").result()
    assert sorted((path, data) for name, path, _, data, _ in seen if name == "write") == [
        ("one", b"one"),
        ("three", b"three"),
        ("two", b"two"),
    ]


def reading(directory: str) -> int:
    """Read inside the directory and write outside of it."""
    Path(directory, "log").read_text()
    Path(directory + "-outside").write_text("elsewhere")
    return 0


def test_reads_and_writes_elsewhere_do_not_count(killer: Killer, tmp_path: Path) -> None:
    """Only changes to the watched place count, so the nth call means the same on every machine."""
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "log").write_text("0123")
    assert killer.run(observe, str(watched), "reading").result() == []
    assert Path(f"{watched}-outside").read_text() == "elsewhere"


def mistaken(directory: str) -> int:
    """Hand the kernel an address where there is nothing, and a descriptor that is not open; write what comes of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(f"{directory}/log", os.O_WRONLY)
    for call, args in ((libc.write, (file, ctypes.c_void_p(8), 4)), (libc.fsync, (999,))):
        assert call(*args) == -1
        os.write(file, errno.errorcode[ctypes.get_errno()].encode())
    return 0


def test_a_call_that_cannot_be_read_fails_by_itself(killer: Killer, tmp_path: Path) -> None:
    """A program's mistake is the program's to see, and does not end the trace."""
    (tmp_path / "log").touch()
    seen = killer.run(observe, str(tmp_path), "mistaken").result()
    assert [data for name, _, _, data, _ in seen] == [b"EFAULT", b"EBADF"]


def signalled(directory: str) -> Traced:
    """Trace a program that sends itself a signal and answers with its handler's exit status."""

    def program() -> int:
        answered = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: answered.set())
        os.kill(os.getpid(), signal.SIGUSR1)
        return 7 if answered.wait(5) else 1

    return trace(program, lambda call: Go.ON, watch=within(directory))


def test_a_signal_reaches_the_traced_program(killer: Killer, tmp_path: Path) -> None:
    """A tracer that swallowed signals would test a program that nobody runs."""
    assert killer.run(signalled, str(tmp_path)).result().exit_status == 7


def decide_badly(directory: str) -> None:
    """Trace with a rule that raises."""

    def decide(call: Call) -> Action:
        raise LookupError(f"no rule for {call.name}")

    try:
        trace(lambda: write_thrice(f"{directory}/words", "write"), decide, watch=within(directory))
    finally:
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, 0)


def test_a_rule_that_raises_ends_the_child_and_is_heard(killer: Killer, tmp_path: Path) -> None:
    """A mistake in the test is reported as such, and leaves no stopped process behind."""
    with pytest.raises(TrialFailed, match="LookupError: no rule for open"):
        killer.run(decide_badly, str(tmp_path)).result()


def trace_beside_another_child(directory: str) -> None:
    """Trace although a child is already there."""
    held, _ = os.pipe()
    if os.fork() == 0:
        os.read(held, 1)
        os._exit(0)
    trace(lambda: 0, lambda call: Go.ON, watch=within(directory))


def test_tracing_beside_other_children_is_refused(killer: Killer, tmp_path: Path) -> None:
    """The tracer waits for any child, so it would take the status that somebody else waits for."""
    with pytest.raises(TrialFailed, match="has other children"):
        killer.run(trace_beside_another_child, str(tmp_path)).result()


def test_another_system_is_told_so_at_use_and_not_at_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The module may be imported anywhere; only its use needs Linux."""
    ptrace.machine.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(TracingUnavailable, match="needs Linux on x86_64 or aarch64; this is darwin"):
        trace(lambda: 0, lambda call: Go.ON, watch=within(tmp_path))
