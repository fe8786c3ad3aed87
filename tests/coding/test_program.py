"""A program under its keeper: alone in its directory, bounded, and gone with its family, whoever dies first."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.harnesses.coding.program import Directory, Ending, Launch, NotStarted, Program, running
from holdfast.agent.harnesses.coding.spool import LineTooLong, Spool, Spools
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
    time.sleep(600)
os.wait()
print('program', os.getpid(), flush=True)
{then}
"""


@dataclass
class Life:
    """A program at work, and where its output goes."""

    program: Program
    spool: Spool

    async def lines(self, most: int = 1_000_000) -> list[bytes]:
        """Return what it writes, up to so many lines."""
        found: list[bytes] = []
        async with aclosing(self.program.lines(self.spool)) as lines:
            async for line in lines:
                if line and b"holdfast.launched" not in line:
                    found.append(line)
                if len(found) == most:
                    break
        return found

    async def ids(self) -> dict[str, int]:
        """Return who is who in a family."""
        return _ids(await self.lines(2))


def _ids(lines: list[bytes]) -> dict[str, int]:
    return {word.decode(): int(number) for word, number in (line.split() for line in lines)}


@asynccontextmanager
async def at_work(
    command: list[str], workspace: Path, *, line_bytes: int = 10_000_000, **more: Any
) -> AsyncIterator[Life]:
    """Yield a program in a directory that it has to itself."""
    directory = await Directory.hold(str(workspace), 30)
    assert directory is not None
    spool = Spools(workspace.parent / "state").of(str(command), line_bytes)
    os.makedirs(os.path.dirname(spool.path), exist_ok=True)
    try:
        async with running(Launch(command, dict(os.environ), **more), directory, spool) as program:
            yield Life(program, spool)
    finally:
        spool.close()
        directory.release()


async def test_a_program_reads_its_prompt_to_the_end_and_works_in_its_directory(
    workspace: Path, script: Script
) -> None:
    """However long the prompt is, and while the program writes as much: neither waits for the other."""
    command = script("import os, sys\nprint(os.getcwd())\nfor line in sys.stdin: print(line, end='')\nsys.exit(3)")
    prompt = b"x" * 99 + b"\n"
    async with at_work(command, workspace, prompt=prompt * 20_000) as life:
        lines = await life.lines()
        assert await life.program.ended() == Ending(status=3)
    assert lines[0].decode() == str(workspace.resolve())
    assert lines[1:] == [prompt[:-1]] * 20_000


async def test_leaving_a_program_ends_its_whole_family(workspace: Path, script: Script) -> None:
    """A shell in a session of its own, orphaned and deaf to SIGTERM, is gone when the `with` is."""
    async with at_work(script(_FAMILY.format(then="time.sleep(600)")), workspace) as life:
        family = await life.ids()
        assert all(map(is_there, family.values()))
    assert not any(map(is_there, family.values()))


async def test_what_a_program_leaves_running_ends_with_it(workspace: Path, script: Script) -> None:
    """A program that ends by itself is not over before the last process that it started is."""
    async with at_work(script(_FAMILY.format(then="sys.exit(0)")), workspace) as life:
        family = await life.ids()
        assert await life.program.ended() == Ending(status=0)
        assert not any(map(is_there, family.values()))


async def test_a_program_may_end_in_its_own_way_when_it_is_stopped(workspace: Path, script: Script) -> None:
    """It is asked first, and can write down where it was."""
    command = script(
        "import signal, sys, time\n"
        "def bye(*_):\n"
        "    open('bye', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    async with at_work(command, workspace, grace_seconds=60.0) as life:
        assert await life.lines(1) == [b"ready"]
    assert (workspace / "bye").exists()


async def test_a_program_that_is_deaf_is_killed_after_its_grace(workspace: Path, script: Script) -> None:
    """No program can keep a run from ending."""
    deaf = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    command = script(f"{deaf}print('program', os.getpid(), flush=True)\ntime.sleep(600)")
    async with at_work(command, workspace, grace_seconds=0.1) as life:
        family = _ids(await life.lines(1))
    assert not is_there(family["program"])


async def test_a_cancelled_reader_is_cancelled_when_the_program_is_gone(workspace: Path, script: Script) -> None:
    """A cancel does not end before what it cancels, and a second cancel does not shorten that."""
    command = script(_FAMILY.format(then="time.sleep(600)"))
    family: dict[str, int] = {}
    told = asyncio.Event()

    async def work() -> None:
        async with at_work(command, workspace) as life:
            family.update(await life.ids())
            told.set()
            await life.lines()

    working = asyncio.create_task(work())
    await asyncio.wait_for(told.wait(), 30)
    working.cancel()
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait([working], timeout=60)
    assert working.cancelled()
    assert not any(map(is_there, family.values()))
    assert is_free(workspace)


_WORKER = """
import asyncio, os, sys, time
from holdfast.agent.harnesses.coding.program import Directory, Launch, running
from holdfast.agent.harnesses.coding.spool import Spool

async def main():
    directory, spool = await Directory.hold(sys.argv[1], 0), Spool(sys.argv[2])
    async with running(Launch(sys.argv[3:], dict(os.environ), grace_seconds=0.2), directory, spool) as program:
        async for line in program.lines(spool):
            if line.startswith((b"orphan", b"program")):
                print(line.decode(), flush=True)
            if line.startswith(b"program") and os.environ.get("FORK"):
                fork = os.fork()
                if fork == 0:
                    time.sleep(600)
                print("fork", fork, flush=True)

asyncio.run(main())
"""


@dataclass
class Worker:
    """A process that has a program at work, with a family."""

    process: subprocess.Popen
    family: dict[str, int]

    def kill(self) -> None:
        """Kill it as nothing else does."""
        self.process.kill()
        self.process.wait(30)


@pytest.fixture(params=["", "1"], ids=["plain", "forked"])
def worker(workspace: Path, script: Script, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """A worker that has a program at work; one has a fork, which has all that was open in it."""
    family = script(_FAMILY.format(then="time.sleep(600)"))
    command = [sys.executable, "-c", _WORKER, str(workspace), str(workspace.parent / "spool"), *family]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "FORK": request.param})
    assert process.stdout is not None
    ids = _ids([process.stdout.readline() for _ in range(3 if request.param else 2)])
    fork = ids.pop("fork", None)
    worker = Worker(process, ids)
    yield worker
    worker.kill()
    if fork is not None:
        os.kill(fork, signal.SIGKILL)
    process.stdout.close()
    wait_free(workspace)


def test_the_directory_of_a_killed_worker_is_free_only_when_its_program_is_gone(
    worker: Worker, workspace: Path
) -> None:
    """Whoever gets the directory after `kill -9` of the worker is alone in it: nobody overlaps with a successor."""
    worker.kill()
    wait_free(workspace)
    assert not any(map(is_there, worker.family.values()))


def test_a_program_does_not_outlive_its_keeper(worker: Worker, workspace: Path) -> None:
    """Even the keeper may be killed: the program dies at once, and what it started keeps the directory locked."""
    family = worker.family
    keeper = int(Path(f"/proc/{family['program']}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    try:
        wait_until(lambda: not is_there(family["program"]), what="the program's death")
        worker.kill()
        assert is_there(family["orphan"])
        assert not is_free(workspace)
    finally:
        os.kill(family["orphan"], signal.SIGKILL)


async def test_a_directory_is_held_by_one_until_its_program_is_gone(workspace: Path, script: Script) -> None:
    """Whoever comes second waits, or is told that it is busy, even where nobody here knows of the first."""
    async with at_work(script("import time\nprint('in', flush=True)\ntime.sleep(600)"), workspace) as life:
        await life.lines(1)
        assert await Directory.hold(str(workspace), 0.05) is None
        following = asyncio.create_task(Directory.hold(str(workspace), 60))
        await asyncio.sleep(0)
        assert not following.done()
    directory = await asyncio.wait_for(following, 60)
    assert directory is not None
    directory.release()


async def test_a_directory_is_the_programs_until_it_has_ended(workspace: Path, script: Script) -> None:
    """Whoever held it for a program has no say in it any more, and whoever starts none gives it back."""
    directory = await Directory.hold(str(workspace), 0)
    assert directory is not None
    async with running(
        Launch(script("import time\ntime.sleep(600)"), dict(os.environ)), directory, Spool(f"{workspace}.jsonl")
    ) as program:
        directory.release()
        assert not is_free(workspace)
        program.stop()
        await program.ended()
    assert is_free(workspace)
    unused = await Directory.hold(str(workspace), 0)
    assert unused is not None
    unused.release()
    assert is_free(workspace)


@pytest.mark.parametrize("command", [["no-such-program-anywhere"], ["/etc/passwd"]])
async def test_what_cannot_be_executed_was_not_started(workspace: Path, command: list[str]) -> None:
    """There is a difference between a program that failed and one that never was."""
    with pytest.raises(NotStarted, match="cannot be executed") as refused:
        async with at_work(command, workspace):
            pass
    assert refused.value.missing == ("no-such" in command[0])
    assert is_free(workspace)


async def test_half_a_line_at_the_end_is_yielded_as_it_is(workspace: Path, script: Script) -> None:
    """Whoever reads lines decides what half of one is worth."""
    command = script("import os, signal\nprint('one\\ntw', end='', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)")
    async with at_work(command, workspace) as life:
        assert await life.lines() == [b"one", b"tw"]
        assert await life.program.ended() == Ending(signal=signal.SIGKILL)


async def test_what_a_program_wrote_can_be_read_again_from_its_beginning(workspace: Path, script: Script) -> None:
    """Its output outlives it and its reader; what the next one writes stands behind it, on a line of its own."""
    command = script("print('one\\ntw', end='')")
    async with at_work(command, workspace) as life:
        await life.program.ended()
    async with at_work(command, workspace) as life:
        await life.program.ended()
    again = Spool(life.spool.path)
    lines = [line for line in again.read() if line]
    again.close()
    assert lines == [b'{"type":"holdfast.launched"}', b"one", b"tw", b'{"type":"holdfast.launched"}', b"one"]
    assert again.rest() == b"tw"


async def test_a_line_without_an_end_is_refused(workspace: Path, script: Script) -> None:
    """It takes no more memory than is stated."""
    command = script("import sys\nwhile True: sys.stdout.write('x' * 5000)")
    with pytest.raises(LineTooLong, match="a line of more than 2000000 bytes"):
        async with at_work(command, workspace, line_bytes=2_000_000, output_bytes=10_000_000) as life:
            await life.lines()


async def test_a_program_that_writes_too_much_is_ended_by_its_keeper(workspace: Path, script: Script) -> None:
    """Lines without end take no more room than is stated, even while nobody reads them."""
    command = script("import sys, time\nsys.stdout.write('line\\n' * 50_000)\nsys.stdout.flush()\ntime.sleep(600)")
    async with at_work(command, workspace, output_bytes=100_000) as life:
        assert await life.program.ended() == Ending(overflowed=True)


async def test_the_end_of_what_a_program_complains_of_is_kept(workspace: Path, script: Script) -> None:
    """Of a long complaint its last lines are the ones that say why."""
    command = script("import sys\nfor n in range(100_000): print('noise', n, file=sys.stderr)\nsys.exit('no login')")
    async with at_work(command, workspace) as life:
        assert await life.program.ended() == Ending(status=1)
        assert str(life.program.tail).endswith("noise 99999 / no login")
        assert len(str(life.program.tail)) < 4096


def test_a_folder_of_spools_is_known_by_one_name(tmp_path: Path) -> None:
    """Whoever looks gets the name that the first one gave it, and another folder has another."""
    spools = Spools(tmp_path / "one")
    assert spools.place() == Spools(tmp_path / "one").place()
    assert spools.place() != Spools(tmp_path / "two").place()
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["place"]


def test_old_spools_are_swept_and_young_ones_kept(tmp_path: Path) -> None:
    """What nobody can ask for any more takes no room."""
    spools = Spools(tmp_path)
    for key in ("old", "young"):
        Path(spools.of(key).path).touch()
    os.utime(spools.of("old").path, (0, 0))
    spools.sweep()
    assert (spools.has("old"), spools.has("young")) == (False, True)
