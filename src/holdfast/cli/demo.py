"""`holdfast demo`: a real program, a real kill -9 at the worst moment, and proof that nothing was done twice."""

import asyncio
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from holdfast import events as ev
from holdfast.cli.exits import Exit
from holdfast.cli.lines import Stopwatch, line_of, mark
from holdfast.cli.options import common
from holdfast.cli.show import show_run
from holdfast.cli.surface import Surface, shown
from holdfast.cli.wording import counted
from holdfast.client.protocol import Client
from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.runtime import open as open_runtime
from holdfast.stream.event import Event

_KEY: Final = "order-7"
_STEPS: Final = 12
_PATIENCE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.02
_LINGER_SECONDS: Final = 0.6
"""A moment for the reader's eyes between acts."""


@click.command("demo")
@click.option("--dir", "folder", metavar="FOLDER", help="Where to put program and store; else a temporary folder.")
@common(store=False)
def demo(surface: Surface, *, folder: str | None) -> int:
    """Watch a program be killed in the middle of a payment, and go on without paying twice.

    Needs no key, no service and no terminal, and takes a few seconds. What it claims is checked against what the
    program really did: the exit status is 1 if a claim does not hold.
    """
    stage = Stage(_prepare(folder))
    return asyncio.run(Demo(Surface(stage.store, surface.json, surface.quiet, stage.store), stage).play())


def _prepare(folder: str | None) -> Path:
    """Write the program into its folder and return that."""
    place = Path(folder).resolve() if folder is not None else Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise _refused(f"{place} is not empty")
        (place / "order.py").write_text((files("holdfast.cli") / "example.py").read_text("utf-8"), "utf-8")
    except OSError as error:
        raise _refused(f"{place} cannot hold the demo: {error.strerror}") from error
    return place


def _refused(message: str) -> InvalidInput:
    error = InvalidInput(message)
    error.hint = "Give --dir a folder that is empty or not there yet."
    return error


@dataclass(frozen=True)
class Stage:
    """Where the demo plays: a program, its store, and the ledger of what it really did."""

    folder: Path

    @property
    def program(self) -> Path:
        """The program that is killed."""
        return self.folder / "order.py"

    @property
    def store(self) -> str:
        """The address of its store."""
        return f"sqlite:///{self.folder / 'demo.db'}"

    def ledger(self) -> list[tuple[int, str]]:
        """Return what was done so far: by which process, and what."""
        path = self.folder / "ledger.txt"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [(int(pid), what) for pid, _, what in (line.partition(" ") for line in lines)]


class _Spoilt(Exception):
    """The demo could not be played to its end."""


def _ended(process: asyncio.subprocess.Process, said: bytes) -> _Spoilt:
    text = said.decode(errors="replace").strip()
    return _Spoilt(f"process {process.pid} ended with status {process.returncode}: {text}")


@dataclass
class Demo:
    """The acts of the demo, and what the journal showed in each."""

    surface: Surface
    stage: Stage
    _watch: Stopwatch = field(default_factory=Stopwatch)
    _began: float = field(default_factory=time.monotonic)
    _processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    _recorded: int = 0
    """Steps whose outcome the journal had when the first process died."""

    async def play(self) -> int:
        """Play every act, then hold the claims against the ledger and the journal."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), open_runtime(self.stage.store, work=False) as runtime:
                self._act(f"A program of {_STEPS} steps, one of which takes money: {self.stage.program}")
                run = await self._begin(runtime.client)
                events = runtime.client.events(run)
                await self._run_and_kill(runtime.client, run, events)
                await self._run_again(events)
                return await self._judge(runtime.client, run)
        except TimeoutError:
            return self._spoilt(f"it was not over after {_PATIENCE_SECONDS:.0f} s")
        except _Spoilt as spoilt:
            return self._spoilt(str(spoilt))
        finally:
            for process in self._processes:
                if process.returncode is None:
                    process.kill()

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(self.stage.program), cwd=self.stage.folder, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        self._processes.append(process)
        return process

    async def _begin(self, client: Client) -> RunId:
        """Start the program and return its run."""
        process = await self._start()
        self._act(f"Process {process.pid} runs it.")
        while True:
            try:
                return await client.find(_KEY)
            except NotFound:
                await self._look(process)

    async def _look(self, process: asyncio.subprocess.Process) -> None:
        """Wait a little for a process that must not end yet."""
        if process.returncode is not None:
            assert process.stdout is not None
            raise _ended(process, await process.stdout.read())
        await asyncio.sleep(_LOOK_SECONDS)

    async def _run_and_kill(self, client: Client, run: RunId, events: AsyncIterator[Event]) -> None:
        """Let the first process work until the money is gone and the bank has not answered, and kill it there."""
        process = self._processes[0]
        async for event in events:
            self._tell(event)
            if isinstance(event, ev.StepStarted):
                break
        while not any(what.startswith("charge ") for _, what in self.stage.ledger()):
            await self._look(process)
        await asyncio.sleep(_LINGER_SECONDS)
        process.kill()
        status = await process.wait()
        async for event in client.events(run, follow=False):
            self._recorded += isinstance(event, ev.StepCompleted)
        info = await client.info(run)
        if status != -signal.SIGKILL or info.status.terminal:
            raise _Spoilt(f"process {process.pid} was to be killed, but ended with status {status}")
        self._act(f"kill -9 {process.pid}: the money is gone, the bank has not answered, the process is dead.", "red")
        recorded = counted(self._recorded, "step")
        self._say(f"the journal has {recorded} and the intent to charge; nobody wrote down how that ended", "dim")

    async def _run_again(self, events: AsyncIterator[Event]) -> None:
        """Start the same program again and let it come to its end."""
        await asyncio.sleep(_LINGER_SECONDS)
        process = await self._start()
        self._act(f"Process {process.pid} runs the same program again.")
        telling = asyncio.ensure_future(self._tell_rest(events))
        said, _ = await process.communicate()
        if process.returncode != 0:
            telling.cancel()
            raise _ended(process, said)
        await telling
        self._say(f"it printed {shown(said.decode(errors='replace').strip())}", "dim")

    async def _tell_rest(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            if isinstance(event, ev.RunResumed):
                kept = f"taken up where it was: {counted(self._recorded, 'step')} from the journal, not performed again"
                self._say(mark("↻", "cyan") + Text(kept, style="cyan"))
                self._watch.took(event)
            else:
                self._tell(event)

    async def _judge(self, client: Client, run: RunId) -> int:
        """Compare what was promised with what the ledger and the journal say."""
        info = await client.info(run)
        performed = Counter(what for _, what in self.stage.ledger())
        by_first = sum(pid == self._processes[0].pid for pid, _ in self.stage.ledger())
        findings = [finding async for finding in client.verify()]
        events = [event async for event in client.events(run, follow=False)]
        charges = sum(count for what, count in performed.items() if what.startswith("charge "))
        claims = {
            "the run completed": info.status is Status.COMPLETED,
            f"all {_STEPS} steps were performed, each exactly once": (
                len(performed) == _STEPS and set(performed.values()) == {1}
            ),
            f"the {self._recorded} steps recorded before the kill were not performed again": (
                0 < self._recorded < _STEPS and by_first == self._recorded + 1
            ),
            "the card was charged exactly once": charges == 1,
            "the doubt about it was seen and ended": any(isinstance(event, ev.StepResolved) for event in events),
            "the journal is whole and sound": not findings,
        }
        if self.surface.json:
            self.surface.value(self._form(run, performed, claims))
        else:
            await self._conclude(client, run, claims)
        return Exit.FINE if all(claims.values()) else Exit.FAILED

    def _form(self, run: RunId, performed: Counter[str], claims: dict[str, bool]) -> dict[str, Any]:
        return {
            "ok": all(claims.values()), "run": run, "store": self.stage.store, "program": str(self.stage.program),
            "killed": self._processes[0].pid, "resumed": self._processes[1].pid, "recorded": self._recorded,
            "performed": dict(performed), "claims": claims, "seconds": round(time.monotonic() - self._began, 3),
        }  # fmt: skip

    async def _conclude(self, client: Client, run: RunId, claims: dict[str, bool]) -> None:
        self._act("What the ledger says, which the program wrote and no journal can change:")
        self._tell_ledger()
        for claim, holds in claims.items():
            true, false = mark("✓", "green") + Text(claim), mark("✗", "red") + Text(f"NOT TRUE: {claim}", style="red")
            self._say(true if holds else false)
        if not self.surface.talks:
            return
        self._act("The run, drawn from its journal by `holdfast show`:")
        self.surface.out.print()
        await show_run(self.surface, client, run)
        self._next(run)

    def _tell_ledger(self) -> None:
        """Tell how often each kind of step was performed, and by which process."""
        titles = [f"process {process.pid}" for process in self._processes]
        counts: dict[str, Counter[int]] = {}
        for pid, what in self.stage.ledger():
            counts.setdefault(what.partition(" ")[0], Counter())[pid] += 1
        width = max(len(name) for name in counts)
        self._say(f"{'':{width}}   {'   '.join(titles)}", "dim")
        for name, by in counts.items():
            pairs = zip(self._processes, titles, strict=True)
            cells = [str(by[process.pid] or "·").rjust(len(title)) for process, title in pairs]
            self._say(f"{name:{width}}   {'   '.join(cells)}")

    def _next(self, run: RunId) -> None:
        folder = shlex.quote(str(self.stage.folder))
        lines = [
            ("read the program", f"less {folder}/order.py"),
            ("kill one yourself", f"cd {folder} && {shlex.quote(sys.executable)} order.py 8   # kill it, run it again"),
            ("see every run", self.surface.command("ls")),
            ("see every event", self.surface.command("tail", run)),
        ]
        self._act("Next:")
        for what, how in lines:
            self._say(Text.assemble((f"{what:<18} ", "dim"), how))

    def _tell(self, event: Event) -> None:
        line = line_of(event, self._watch.took(event))
        if line is not None:
            self._say(line)

    def _act(self, text: str, style: str = "bold") -> None:
        if self.surface.talks:
            self.surface.out.print()
            self.surface.out.print(Text(text, style=style), soft_wrap=True)

    def _say(self, line: Text | str, style: str = "") -> None:
        if self.surface.talks:
            said = line if isinstance(line, Text) else Text(line, style=style)
            self.surface.out.print(Text("   ") + said, soft_wrap=True)

    def _spoilt(self, why: str) -> int:
        self.surface.fail("demo_failed", f"the demo could not be played: {why}", hint="`holdfast doctor` may tell why.")
        return Exit.FAILED
