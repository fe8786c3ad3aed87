"""`holdfast run`: start a durable function, or go on with its run, and watch it to its end."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.agent.agent import Agent
from holdfast.cli.arguments import example_of, read_arguments
from holdfast.cli.budget import given_budget
from holdfast.cli.completion import complete_file, complete_key
from holdfast.cli.detach import delay_of, start_detached
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import common, labels_of
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.target import Target, load_target
from holdfast.cli.trouble import tell_trouble
from holdfast.cli.watching import Rest, Watching
from holdfast.cli.wording import between, counted, duration
from holdfast.cli.writer import write_answer
from holdfast.client.protocol import Client, RunInfo
from holdfast.core.errors import InvalidInput, NotFound, StoreUnavailable
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.engine.starting import read_input
from holdfast.runtime import Opening, Runtime


@dataclass(frozen=True)
class Asked:
    """What the command line asked for, as it was written."""

    target: str
    args: Sequence[str] = ()
    input: str | None = None
    key: str | None = None
    labels: Sequence[str] = ()
    resume: str | None = None
    budget: str | None = None
    delay: str | None = None
    detach: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What a start is told beside the arguments."""
        return {
            "key": self.key,
            "labels": labels_of(tuple(self.labels)),
            "budget": given_budget(self.budget),
            "delay": delay_of(self.delay),
        }

    def again(self, surface: Surface, run: RunId | None) -> str:
        """Return the command that goes on with the run."""
        if self.key is None:
            return surface.command("run", self.target, *(("--resume", run) if run is not None else ()))
        words = [self.target, "--key", self.key]
        if self.input is not None:
            words += ["--input", self.input]
        for label in self.labels:
            words += ["--label", label]
        if self.budget is not None:
            words += ["--budget", self.budget]
        dashed = any(arg.startswith("-") for arg in self.args)
        return surface.command("run", *words, *(["--"] if dashed else []), *self.args)


@click.command("run")
@click.argument("target", metavar="TARGET", shell_complete=complete_file)
@click.argument("args", metavar="[ARG]...", nargs=-1)
@click.option(
    "--key",
    metavar="KEY",
    help="The run's own key: the same key goes on with the same run.",
    shell_complete=complete_key,
)
@click.option("--input", "input_", metavar="JSON", help="The arguments as one JSON object; - reads it from stdin.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="A label to find it by; may be repeated.")
@click.option("--budget", metavar="LIMITS", help="What it may spend: steps=100,usd=0.50,deadline=1h; then it rests.")
@click.option("--delay", metavar="TIME", help="Let it begin later: 30s, 15m, 2h.")
@click.option("--detach", is_flag=True, help="Leave it to a worker: print the run's id, and perform nothing.")
@click.option("--resume", metavar="RUN", help="Go on with a run that has no key.")
@common()
def run(surface: Surface, *, target: str, input_: str | None, **written: Any) -> int:
    """Run an agent or a durable function to its end.

    TARGET is file.py, file.py:name, module or module:name. Each ARG is JSON if that fits its parameter, else text.

    An agent's answer is written as it comes; the result of any other function is printed to stdout as JSON. Steps,
    tools, and what the program prints go to stderr. Killed or interrupted at any moment, the run goes on when it is run
    again under the same key.

    With --detach nothing is performed here: the run's id is printed, and a worker takes it up.
    """
    asked = Asked(target, input=input_, **written)
    _check(asked)
    if input_ == "-":
        input_ = sys.stdin.read()
    out, screen = sys.stdout, surface.out
    with redirect_stdout(sys.stderr):
        program = load_target(target)
        named: dict[str, Any] = {}
        if asked.resume is None:
            named = _read(surface, asked, program, input_)
        if asked.detach:
            with redirect_stdout(out):
                return asyncio.run(start_detached(surface, program, named, **asked.options))
        going = Going(surface, asked, program, named, screen if isinstance(program.function, Agent) else None)
        try:
            rest = asyncio.run(going.drive())
        except KeyboardInterrupt:
            return going.interrupted()
        except StoreUnavailable as error:
            going.advise(error)
            raise
    return going.ended(rest)


def _read(surface: Surface, asked: Asked, program: Target, text: str | None) -> dict[str, Any]:
    """Return the arguments that were given, or refuse them with a command that would be taken."""
    function = program.function
    try:
        return read_arguments(function, asked.args) if text is None else read_input(function, text, "--input")
    except InvalidInput as error:
        words = example_of(function)
        if words is not None:
            error.hint += f"\nFor example:\n  {surface.command('run', asked.target, *words)}"
        raise


def _check(asked: Asked) -> None:
    if asked.args and asked.input is not None:
        raise click.UsageError("give the arguments as words or by --input, not both")
    options = [asked.key, asked.input, asked.budget, asked.delay]
    started = asked.args or asked.labels or asked.detach or any(option is not None for option in options)
    if asked.resume is not None and started:
        raise click.UsageError(
            "--resume goes on with a run as it was started: leave out arguments, --key, --label, --budget, --delay "
            "and --detach"
        )
    _ = asked.options  # what is written wrong is refused before the program is loaded


@dataclass
class Going:
    """One run on its way, watched."""

    surface: Surface
    asked: Asked
    program: Target
    named: dict[str, Any]
    screen: Console | None = None
    """Where words go as they come."""
    run: RunId | None = None
    _watching: Watching | None = None

    async def drive(self) -> Rest:
        """Start or take up the run, tell what happens, and return where it came to rest."""
        app, store = self.program.app, self.surface.store
        app.add(self.program.function)
        if self.asked.resume is not None:
            self.run = await self._find(self.asked.resume)
        only = {self.run} if self.run is not None else set()
        async with Opening(store, app, work=True, concurrency=64, only=only, watched=True) as runtime:
            client = runtime.client
            before = await self._before(client)
            if self.run is None:
                self.run = await self._start(runtime)
            self._watching = Watching(self.surface, client, self.run, self.screen)
            await self._tell_beginning(self._watching, before)
            return await self._watching.until_rest(runtime)

    async def _find(self, text: str) -> RunId:
        """Return the run to go on with, having looked before any worker starts."""
        async with open_client(self.surface.store) as client:
            info = await client.info(await find_run(client, text))
        name = self.program.function.name
        if info.name != name:
            raise InvalidInput(f"run {info.id} is of {info.name!r}, not of {name!r}")
        return RunId(info.id)

    async def _before(self, client: Client) -> RunInfo | None:
        """Return where the run stood before this process, if it did."""
        if self.run is None and self.asked.key is None:
            return None
        try:
            return await client.info(self.run or await client.find(self.asked.key or ""))
        except NotFound:
            return None

    async def _start(self, runtime: Runtime) -> RunId:
        return (await runtime.start_named(self.program.function, self.named, **self.asked.options)).id

    async def _tell_beginning(self, watching: Watching, before: RunInfo | None) -> None:
        """Name the run, and say in one line what it had recorded before this process."""
        key = f"  key {shown(self.asked.key)}" if self.asked.key is not None else ""
        self.surface.say(Text.assemble((shown(self.program.function.name), "bold"), f"  run {self.run}", (key, "dim")))
        if before is None:
            return
        recorded = await watching.remember(before.last_seq)
        begun = before.last_seq > 1
        said = "no step had an outcome: it goes on" if begun else "nothing was recorded before: it begins again"
        if recorded:
            said = f"{counted(recorded, 'step')} recorded before, not performed again"
        if before.status.terminal:
            said = "it had ended before: nothing is performed"
        self.surface.say(Text("  ") + mark("↻", "cyan") + Text(said, style="cyan"))

    def interrupted(self) -> int:
        """Say how to go on after Ctrl-C."""
        again = self.asked.again(self.surface, self.run)
        what = f"run {self.run} keeps what it recorded" if self.run is not None else "nothing was started"
        hint = f"Go on with it:\n  {again}"
        ways: list[str] = []
        under_way = list(self._watching.under_way) if self._watching is not None else []
        for step in under_way:
            what += f"; step {step} may or may not have happened"
            resolve = self.surface.command("resolve", str(self.run), step)
            ways += [f"{resolve} --value JSON", f"{resolve} --not-done"]
        if ways:
            hint = "\n  ".join([f"Look whether it happened. {hint}\nIf it then waits for your word:", *ways])
        data = {"run": self.run, "in_doubt": under_way, "resolve": ways, "resume": again}
        self.surface.fail("interrupted", what, hint=hint, word="interrupted", **data)
        return Exit.INTERRUPTED

    def advise(self, error: StoreUnavailable) -> None:
        """Say how to go on when the store can be used again."""
        if self.run is not None:
            error.hint = f"{error.hint}\nThen go on with it:\n  {self.asked.again(self.surface, self.run)}"

    def ended(self, rest: Rest) -> int:
        """Print the result, or say why there is none and what to do."""
        if rest.info.status is not Status.COMPLETED:
            return tell_trouble(self.surface, rest, self.asked.again(self.surface, RunId(rest.info.id)))
        self._say_completed(rest)
        self._print_result(rest)
        return Exit.FINE

    def _print_result(self, rest: Rest) -> None:
        """Print the result, unless it has been written on the screen; an agent's answer is text as it is."""
        if self.surface.json or not isinstance(self.program.function, Agent):
            self.surface.value(rest.info if self.surface.json else rest.info.result)
        elif not rest.answered:
            write_answer(self.surface.out, rest.info.result)

    def _say_completed(self, rest: Rest) -> None:
        took = duration(between(rest.info.created_at, rest.info.updated_at))
        show = self.surface.command("show", rest.info.id)
        self.surface.say(mark("■", "green") + Text.assemble(("completed", "green"), (f" in {took} · {show}", "dim")))
        if rest.bill is not None and rest.bill.generations:
            self.surface.say(Text(f"  {rest.bill.words}", style="dim"))
