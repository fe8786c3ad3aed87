"""A program under its keeper: bounded, and gone with all that it started, whoever dies first."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from holdfast.agent.harnesses.coding.program import Ending, Launch, NotStarted, Program, TooMuch, running
from tests.coding.conftest import is_free, is_there, wait_free
from tests.rigs.waiting import wait_until

Script = Callable[[str], list[str]]

_FAMILY = """
import os, signal, sys, time
if os.fork() == 0:
    # As coding programs start a shell: in a session of its own, which no signal to their group reaches.
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print('orphan', os.getpid(), flush=True)
    os.close(1); os.close(2)
    time.sleep(600)
os.wait()
print('program', os.getpid(), flush=True)
{then}
"""


def _launch(command: list[str], workspace: Path, **more: object) -> Launch:
    given = {"grace_seconds": 5.0, "wait_seconds": 30.0, **more}
    return Launch(command=command, workspace=str(workspace), env=dict(os.environ), **given)  # type: ignore[arg-type]


def _ids(lines: list[bytes]) -> dict[str, int]:
    """Return who is who in a family."""
    return {word.decode(): int(number) for word, number in (line.split() for line in lines)}


async def _lines(program: Program, most: int = 1000) -> list[bytes]:
    found = []
    async with aclosing(program.lines()) as lines:
        async for line in lines:
            found.append(line)
            if len(found) == most:
                break
    return found


async def test_a_program_reads_its_prompt_to_the_end_and_works_in_its_directory(
    workspace: Path, script: Script
) -> None:
    """However long the prompt is, and while the program writes as much: neither waits for the other."""
    command = script("import os, sys\nprint(os.getcwd())\nfor line in sys.stdin: print(line, end='')\nsys.exit(3)")
    prompt = b"x" * 99 + b"\n"
    async with running(_launch(command, workspace, prompt=prompt * 20_000)) as program:
        lines = await _lines(program, 30_000)
        assert await program.ended() == Ending(status=3)
    assert lines[0].decode() == str(workspace.resolve())
    assert lines[1:] == [prompt[:-1]] * 20_000


async def test_leaving_a_program_ends_its_whole_family(workspace: Path, script: Script) -> None:
    """A shell in a session of its own, orphaned and deaf to SIGTERM, is gone when the `with` is."""
    command = script(_FAMILY.format(then="time.sleep(600)"))
    async with running(_launch(command, workspace)) as program:
        family = _ids(await _lines(program, 2)).values()
        assert all(map(is_there, family))
    assert not any(map(is_there, family))


async def test_what_a_program_leaves_running_ends_with_it(workspace: Path, script: Script) -> None:
    """A program that ends by itself is not over before the last process that it started is."""
    async with running(_launch(script(_FAMILY.format(then="sys.exit(0)")), workspace)) as program:
        family = _ids(await _lines(program)).values()
        assert await program.ended() == Ending(status=0)
        assert not any(map(is_there, family))


async def test_a_program_may_end_in_its_own_way_when_it_is_stopped(workspace: Path, script: Script) -> None:
    """It is asked first, and can write down where it was, as much as it likes."""
    command = script(
        "import signal, sys, time\n"
        "def bye(*_):\n"
        "    print('x' * 1_000_000); open('bye', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    async with running(_launch(command, workspace, grace_seconds=60.0)) as program:
        assert await _lines(program, 1) == [b"ready"]
    assert (workspace / "bye").exists()


async def test_a_program_that_is_deaf_is_killed_after_its_grace(workspace: Path, script: Script) -> None:
    """No program can keep a run from ending."""
    command = script("import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                     "print(os.getpid(), flush=True)\ntime.sleep(600)")  # fmt: skip
    async with running(_launch(command, workspace, grace_seconds=0.1)) as program:
        (process,) = [int(line) for line in await _lines(program, 1)]
    assert not is_there(process)


async def test_a_cancelled_reader_is_cancelled_when_the_program_is_gone(workspace: Path, script: Script) -> None:
    """A cancel does not end before what it cancels, and a second cancel does not shorten that."""
    command = script(_FAMILY.format(then="time.sleep(600)"))
    family: list[int] = []
    told = asyncio.Event()

    async def work() -> None:
        async with running(_launch(command, workspace)) as program:
            family.extend(_ids(await _lines(program, 2)).values())
            told.set()
            await _lines(program)

    working = asyncio.create_task(work())
    await asyncio.wait_for(told.wait(), 30)
    working.cancel()
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    assert not any(map(is_there, family))


_WORKER = """
import asyncio, os, sys
from holdfast.agent.harnesses.coding.program import Launch, running

async def main():
    launch = Launch(command=sys.argv[2:], workspace=sys.argv[1], env=dict(os.environ), grace_seconds=0.2)
    async with running(launch) as program:
        async for line in program.lines():
            print(line.decode(), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def worker(workspace: Path, script: Script) -> Iterator[subprocess.Popen]:
    """A process that has a program at work, with a family."""
    command = [sys.executable, "-c", _WORKER, str(workspace), *script(_FAMILY.format(then="time.sleep(600)"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()
    wait_free(workspace)


def _family(worker: subprocess.Popen) -> dict[str, int]:
    assert worker.stdout is not None
    return _ids([worker.stdout.readline() for _ in range(2)])


def test_the_directory_of_a_killed_worker_is_free_only_when_its_program_is_gone(
    worker: subprocess.Popen, workspace: Path
) -> None:
    """Whoever gets the directory after `kill -9` of the worker is alone in it: nobody overlaps with a successor."""
    family = _family(worker)
    worker.send_signal(signal.SIGKILL)
    worker.wait(30)
    wait_free(workspace)
    assert not any(map(is_there, family.values()))


def test_a_program_does_not_outlive_its_keeper(worker: subprocess.Popen, workspace: Path) -> None:
    """Even the keeper may be killed: the program dies at once, and what it started keeps the directory locked."""
    family = _family(worker)
    keeper = int(Path(f"/proc/{family['program']}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    try:
        worker.wait(30)
        wait_until(lambda: not is_there(family["program"]), what="the program's death")
        assert not is_free(workspace)
    finally:
        os.kill(family["orphan"], signal.SIGKILL)


async def test_a_second_program_waits_until_the_first_is_gone(workspace: Path, script: Script) -> None:
    """It is executed only when the directory is free, even where nobody here knows of the first."""
    first = script("import time\nprint('in', flush=True)\ntime.sleep(600)")
    second = script("print('alone')")

    async def follow() -> list[bytes]:
        async with running(_launch(second, workspace)) as program:
            return await _lines(program)

    async with running(_launch(first, workspace)) as program:
        await _lines(program, 1)
        following = asyncio.create_task(follow())
        with pytest.raises(NotStarted, match="another program is at work") as refused:
            async with running(_launch(second, workspace, wait_seconds=0.1)):
                pass
        assert refused.value.busy
        assert not following.done()
    assert await asyncio.wait_for(following, 30) == [b"alone"]


async def test_a_program_that_waits_for_its_directory_can_be_stopped(workspace: Path, script: Script) -> None:
    """A cancel is heard before there is anything to cancel."""
    first = script("import time\nprint('in', flush=True)\ntime.sleep(600)")

    async def follow() -> None:
        async with running(_launch(first, workspace, wait_seconds=600.0)):
            pass

    async with running(_launch(first, workspace)) as program:
        await _lines(program, 1)
        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait([following], timeout=30)
        assert following.cancelled()


@pytest.mark.parametrize("command", [["no-such-program-anywhere"], ["/etc/passwd"], ["/"]])
async def test_what_cannot_be_executed_was_not_started(workspace: Path, command: list[str]) -> None:
    """There is a difference between a program that failed and one that never was."""
    with pytest.raises(NotStarted, match="cannot be executed") as refused:
        async with running(_launch(command, workspace)):
            pass
    assert refused.value.missing


async def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A program is never started somewhere else."""
    with pytest.raises(NotStarted, match="the directory cannot be used: No such file"):
        async with running(_launch(["true"], tmp_path / "gone")):
            pass


async def test_half_a_line_at_the_end_is_yielded_as_it_is(workspace: Path, script: Script) -> None:
    """Whoever reads lines decides what half of one is worth."""
    command = script("import os, signal\nprint('one\\ntw', end='', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)")
    async with running(_launch(command, workspace)) as program:
        assert await _lines(program) == [b"one", b"tw"]
        assert await program.ended() == Ending(signal=signal.SIGKILL)


@pytest.mark.parametrize(
    ("write", "wrong"),
    [("'x' * 5000", "a line of more than 1000 bytes"), ("('x' * 99 + chr(10)) * 5000", "more than 100000 bytes")],
)
async def test_a_program_that_writes_too_much_is_cut(workspace: Path, script: Script, write: str, wrong: str) -> None:
    """Neither a line without an end nor lines without end take more memory than is stated."""
    command = script(f"import sys\nwhile True: sys.stdout.write({write})")
    launch = _launch(command, workspace, line_bytes=1000, output_bytes=100_000)
    with pytest.raises(TooMuch, match=wrong):
        async with running(launch) as program:
            await _lines(program, 10_000)


async def test_the_end_of_what_a_program_complains_of_is_kept(workspace: Path, script: Script) -> None:
    """Of a long complaint its last lines are the ones that say why."""
    command = script("import sys\nfor n in range(100_000): print('noise', n, file=sys.stderr)\nsys.exit('no login')")
    async with running(_launch(command, workspace)) as program:
        await _lines(program)
        assert await program.ended() == Ending(status=1)
    assert str(program.tail).endswith("noise 99999 / no login")
    assert len(str(program.tail)) < 4096
