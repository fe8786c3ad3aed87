"""`holdfast run`: start a durable function, or go on with its run, and watch it to its end."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import click
from rich.text import Text

from holdfast import events as ev
from holdfast.cli.arguments import example_of, read_arguments, read_input
from holdfast.cli.budget import given_budget
from holdfast.cli.completion import complete_file, complete_key
from holdfast.cli.detach import delay_of, start_detached
from holdfast.cli.exits import Exit
from holdfast.cli.lines import Stopwatch, line_of, mark
from holdfast.cli.options import common, labels_of
from holdfast.cli.questions import ways_of
from holdfast.cli.saying import ending, raising, waiting
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.target import Target, load_target
from holdfast.cli.wording import between, counted, duration
from holdfast.client.protocol import Client, Question, RunInfo
from holdfast.core.errors import InvalidInput, NotFound, StoreUnavailable
from holdfast.core.ids import RunId
from holdfast.core.status import Effect, Status
from holdfast.runtime import Opening, Runtime
from holdfast.stream.event import Event


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
@click.option("--budget", metavar="LIMITS", help="What it may spend: steps=100,deadline=1h; then it rests.")
@click.option("--delay", metavar="TIME", help="Let it begin later: 30s, 15m, 2h.")
@click.option("--detach", is_flag=True, help="Leave it to a worker: print the run's id, and perform nothing.")
@click.option("--resume", metavar="RUN", help="Go on with a run that has no key.")
@common()
def run(surface: Surface, *, target: str, input_: str | None, **written: Any) -> int:
    """Run a durable function to its end.

    TARGET is file.py, file.py:name, module or module:name. Each ARG is JSON if that fits its parameter, else text.

    The result is printed to stdout as JSON; the run's steps, and what the program prints, go to stderr. Killed or
    interrupted at any moment, the run goes on when it is run again under the same key.

    With --detach nothing is performed here: the run's id is printed, and a worker takes it up.
    """
    asked = Asked(target, input=input_, **written)
    _check(asked)
    if input_ == "-":
        input_ = sys.stdin.read()
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        program = load_target(target)
        named: dict[str, Any] = {}
        if asked.resume is None:
            named = _read(surface, asked, program, input_)
        if asked.detach:
            with redirect_stdout(out):
                return asyncio.run(start_detached(surface, program, named, **asked.options))
        going = Going(surface, asked, program, named)
        try:
            info = asyncio.run(going.drive())
        except KeyboardInterrupt:
            return going.interrupted()
        except StoreUnavailable as error:
            going.advise(error)
            raise
    return going.ended(info)


def _read(surface: Surface, asked: Asked, program: Target, text: str | None) -> dict[str, Any]:
    """Return the arguments that were given, or refuse them with a command that would be taken."""
    function = program.function
    try:
        return read_arguments(function, asked.args) if text is None else read_input(function, text)
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
    run: RunId | None = None
    _seen: str | int = 0
    _doubted: str | None = None
    _under_way: dict[str, None] = field(default_factory=dict)
    """The `once` steps with an intent and no outcome."""
    _asked: Sequence[Question] = ()
    _held: RunInfo | None = None
    _watch: Stopwatch = field(default_factory=Stopwatch)

    async def drive(self) -> RunInfo:
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
            await self._tell_beginning(client, before)
            with self._spinner():
                telling = asyncio.create_task(self._tell(client, follow=True))
                try:
                    ending = await runtime._wait_or_trouble(self.run)
                finally:
                    telling.cancel()
                    await asyncio.gather(telling, return_exceptions=True)
                await self._tell(client, follow=False)
            info = await client.info(self.run)
            if ending.held_by is not None:
                self._held = await self._look_at(client, ending.held_by)
            elif info.status is Status.WAITING and info.reason.startswith("ask"):
                self._asked = await client.questions(self.run)
            return info

    async def _look_at(self, client: Client, run: RunId) -> RunInfo:
        """Return how a descendant stands that holds the run up, and keep what it asks or doubts."""
        self._doubted = None
        async for event in client.events(run, follow=False):
            if isinstance(event, ev.RunParked):
                self._doubted = event.step if event.reason == "doubt" else None
        self._asked = await client.questions(run)
        return await client.info(run)

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

    async def _tell_beginning(self, client: Client, before: RunInfo | None) -> None:
        """Name the run, and say in one line what it had recorded before this process."""
        key = f"  key {shown(self.asked.key)}" if self.asked.key is not None else ""
        self.surface.say(Text.assemble((shown(self.program.function.name), "bold"), f"  run {self.run}", (key, "dim")))
        if before is None:
            return
        recorded = 0
        async for event in client.events(RunId(before.id), follow=False):
            recorded += isinstance(event, ev.StepCompleted)
            recorded += isinstance(event, ev.StepResolved) and event.outcome == "done"
            self._note(event)
            if event.id == str(before.last_seq):
                break
        begun = before.last_seq > 1
        said = "no step had an outcome: it goes on" if begun else "nothing was recorded before: it begins again"
        if recorded:
            said = f"{counted(recorded, 'step')} recorded before, not performed again"
        if before.status.terminal:
            said = "it had ended before: nothing is performed"
        self.surface.say(Text("  ") + mark("↻", "cyan") + Text(said, style="cyan"))

    def _note(self, event: Event) -> int | None:
        """Keep what later lines need of an event, and return how long its step took."""
        self._seen = event.id or self._seen
        if isinstance(event, ev.RunParked):
            self._doubted = event.step if event.reason == "doubt" else None
        if isinstance(event, ev.StepStarted) and event.effect is Effect.ONCE:
            self._under_way[event.step] = None
        elif isinstance(event, ev.StepCompleted | ev.StepFailed | ev.StepResolved):
            self._under_way.pop(event.step, None)
        return self._watch.took(event)

    async def _tell(self, client: Client, *, follow: bool) -> None:
        assert self.run is not None
        async for event in client.events(self.run, after=self._seen or None, follow=follow):
            line = line_of(event, self._note(event))
            if line is not None and not isinstance(event, ev.Chunk | ev.RunFinished):
                self.surface.say(Text("  ") + line)

    @contextmanager
    def _spinner(self) -> Iterator[None]:
        if self.surface.talks and self.surface.err.is_terminal:
            with self.surface.err.status(Text("working", style="dim")):
                yield
        else:
            yield

    def interrupted(self) -> int:
        """Say how to go on after Ctrl-C."""
        again = self.asked.again(self.surface, self.run)
        what = f"run {self.run} keeps what it recorded" if self.run is not None else "nothing was started"
        hint = f"Go on with it:\n  {again}"
        ways: list[str] = []
        for step in self._under_way:
            what += f"; step {step} may or may not have happened"
            resolve = self.surface.command("resolve", str(self.run), step)
            ways += [f"{resolve} --value JSON", f"{resolve} --not-done"]
        if ways:
            hint = "\n  ".join([f"Look whether it happened. {hint}\nIf it then waits for your word:", *ways])
        data = {"run": self.run, "in_doubt": list(self._under_way), "resolve": ways, "resume": again}
        self.surface.fail("interrupted", what, hint=hint, word="interrupted", **data)
        return Exit.INTERRUPTED

    def advise(self, error: StoreUnavailable) -> None:
        """Say how to go on when the store can be used again."""
        if self.run is not None:
            error.hint = f"{error.hint}\nThen go on with it:\n  {self.asked.again(self.surface, self.run)}"

    def ended(self, info: RunInfo) -> int:
        """Print the result, or say why there is none and what to do."""
        if info.status is Status.COMPLETED:
            self._say_completed(info)
            self.surface.value(info if self.surface.json else info.result)
            return Exit.FINE
        again = self.asked.again(self.surface, RunId(info.id))
        stuck = self._held or info
        data: dict[str, Any] = {"run": info.id, "status": info.status, "reason": info.reason, "error": info.error}
        if self._held is not None:
            data["held_by"] = self._held.id
        who = f"run {info.id}" if self._held is None else f"child {shown(stuck.name)} {stuck.id} of run {info.id}"
        if self._doubted is not None and stuck.status is Status.WAITING:
            resolve = self.surface.command("resolve", stuck.id, self._doubted)
            ways = [f"{resolve} --value JSON", f"{resolve} --not-done"]
            message = f"{who} needs a person's word: {stuck.reason.removeprefix('doubt: ')}"
            data |= {"step": self._doubted, "resolve": ways}
            return self._needs_person(message, "Look whether it happened, and say so:", ways, again, data)
        if self._asked and stuck.status is Status.WAITING:
            ways = [way for question in self._asked for way in ways_of(self.surface, question)]
            data |= {"questions": self._asked, "answer": ways}
            message = f"{who} waits for an answer: {'; '.join(question.text for question in self._asked)}"
            return self._needs_person(message, "Answer it:", ways, again, data)
        if stuck.status is Status.EXHAUSTED:
            raised = raising(self.surface, stuck.id, stuck.reason)
            hint = f"Raise it, and go on:\n  {raised}\n  {again}"
            reason = stuck.reason if self.surface.json else waiting(stuck.reason)
            message = f"{who} has used up its budget: {reason}"
            self.surface.fail("budget_exceeded", message, hint=hint, **data, budget=stuck.budget, resume=again)
            return Exit.FAILED
        self._say_trace(stuck)
        show = self.surface.command("show", stuck.id)
        verb = "failed" if stuck.status is Status.FAILED else f"is {stuck.status}"
        message = f"{who} {verb}{ending(stuck.status, stuck.reason)}"
        self.surface.fail("run_error", message, hint=f"What happened:\n  {show}", **data)
        return Exit.FAILED

    def _needs_person(self, message: str, first: str, ways: Sequence[str], again: str, data: dict[str, Any]) -> int:
        hint = "\n".join([first, *(f"  {way}" for way in ways), "Then:", f"  {again}"])
        self.surface.fail("waiting_for_person", message, hint=hint, word="waiting", **data, resume=again)
        return Exit.PERSON

    def _say_trace(self, info: RunInfo) -> None:
        """Print where a failure was raised, which is not logged: behind the steps that went before it."""
        for line in ((info.error or {}).get("traceback") or "").splitlines():
            self.surface.say(Text(f"  {shown(line)}", style="dim"))

    def _say_completed(self, info: RunInfo) -> None:
        took = duration(between(info.created_at, info.updated_at))
        show = self.surface.command("show", info.id)
        self.surface.say(mark("■", "green") + Text.assemble(("completed", "green"), (f" in {took} · {show}", "dim")))
