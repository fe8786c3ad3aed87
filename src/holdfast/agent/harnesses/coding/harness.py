"""Coding programs take turns: their session is the cursor, and a turn that broke off is gone on with in it."""

import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import msgspec

from holdfast.agent.harness import Ask, CursorInvalid, Event, InDoubt, Start
from holdfast.agent.harnesses.coding.claude import CLAUDE_CODE
from holdfast.agent.harnesses.coding.cli import Cli
from holdfast.agent.harnesses.coding.codex import CODEX
from holdfast.agent.harnesses.coding.exchange import Cursor, Exchange, Handle, Wish, prompt_of
from holdfast.agent.harnesses.coding.program import Directory, Launch
from holdfast.agent.harnesses.coding.spool import Spools
from holdfast.agent.model import ModelRefused
from holdfast.core.errors import InvalidInput
from holdfast.core.retry import checked_seconds

_COMMON: Final = (
    "ALL_PROXY", "COLORTERM", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LANGUAGE", "LC_*", "LD_LIBRARY_PATH",
    "LOGNAME", "NODE_EXTRA_CA_CERTS", "NO_PROXY", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TMPDIR",
    "TZ", "USER", "XDG_*", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""What every program gets of the worker's environment; the rest may be a secret, and models run commands in it."""
_WAIT_SECONDS: Final = 2.0
"""How long a directory may be in use by another over the time that a program has to stop, before the run rests."""
_SETTINGS: Final = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
"""The settings that say how much is set aside of a budget; a program is told nothing of them."""


class CodingOptions(TypedDict, total=False):
    """The keywords of a coding harness."""

    workspace: str | os.PathLike[str] | None
    model: str | None
    arguments: Sequence[str]
    env: Mapping[str, str] | None
    program: str | Sequence[str] | None
    grace_seconds: float
    rest_seconds: float
    state: str | os.PathLike[str] | None


class Coding:
    """A coding program takes the turns of a conversation, in the agent's workspace.

    It is started for each turn, and ended with the run: cancelled, or its worker killed, it goes with all that it
    started. A turn that broke off is gone on with in the same session. Nobody else works in the directory meanwhile.
    """

    version = 1
    keyed = True
    in_doubt: InDoubt = "raise"
    takes_tools = False

    def __init__(
        self, cli: Cli, *, workspace: str | os.PathLike[str] | None = None, model: str | None = None,
        arguments: Sequence[str] = (), env: Mapping[str, str] | None = None, program: str | Sequence[str] | None = None,
        grace_seconds: float = 5.0, rest_seconds: float = 5.0, state: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        """Describe how the program is started; nothing is before a run is driven.

        Args:
            cli: Which program it is: how it is called, and what it writes.
            workspace: The directory that it works in, where the agent does not say one.
            model: The model that it shall use; by default its own choice.
            arguments: More words for its command line, at every start: what it may do without asking, and so on.
            env: Variables for its environment besides the common ones, its own and those of the provider.
            program: Where it is; by default it is looked for in `PATH`.
            grace_seconds: How long it may take to stop by itself when it shall.
            rest_seconds: How long the run rests before it looks again, where another is at work in the directory.
            state: The folder for what it writes; by default `holdfast/coding` in `XDG_STATE_HOME`.

        Raises:
            InvalidInput: some of it means nothing.
        """
        if not isinstance(cli, Cli):
            raise InvalidInput(f"Coding(cli) is a harness.Cli, not {cli!r}")
        if isinstance(arguments, str):
            raise InvalidInput("arguments= is a list of words, not one text")
        self.cli, self._arguments, self._env = cli, tuple(arguments), dict(env or {})
        self._workspace, self._model = workspace, model
        given = program if program is not None else cli.command[0]
        self._program = [given] if isinstance(given, str) else list(given)
        self._grace = checked_seconds("grace_seconds=", grace_seconds)
        self.rest_seconds = checked_seconds("rest_seconds=", rest_seconds, least=1e-3)
        self.spools = Spools(state)

    def __repr__(self) -> str:
        return f"<harness {self.name}>"

    @property
    def name(self) -> str:
        return self.cli.name

    @property
    def lane(self) -> str:
        return f"coding/{self.cli.name}"

    async def open(self, start: Start) -> "CodingSession":
        given = start.workspace if start.workspace is not None else self._workspace
        if given is None:
            raise InvalidInput(f"harness {self.name!r} works in a directory: give the agent workspace=")
        unknown = sorted(set(start.settings) - _SETTINGS)
        if unknown:
            raise InvalidInput(f"harness {self.name!r} takes no settings= ({', '.join(unknown)}): use its arguments=")
        workspace = str(Path(given).resolve())
        self.read_cursor(start.cursor, workspace)
        self.spools.sweep()
        return CodingSession(self, start, workspace)

    def read_cursor(self, cursor: Any, workspace: str) -> Cursor | None:
        """Return where a conversation stands; None for one that has just begun.

        Raises:
            CursorInvalid: it is none of this harness's, or its session is of another directory.
        """
        if cursor is None:
            return None
        try:
            found = msgspec.convert(cursor, Cursor)
        except msgspec.ValidationError as error:
            raise CursorInvalid(str(error), harness=self.name, what="corrupt") from error
        if found.workspace != workspace:
            raise CursorInvalid(f"its session is of {found.workspace}, not of {workspace}", harness=self.name)
        return found

    def launch(self, wish: Wish, prompt: str, session: str | None, *, resumes: bool) -> Launch:
        """Return one start of the program."""
        if not self.cli.instructions and wish.instructions and not resumes:
            prompt = f"{wish.instructions}\n\n{prompt}"
        command = self.cli.words(
            session=session, resumes=resumes, model=self._model, instructions=wish.instructions, prompt=prompt,
            more=self._arguments,
        )  # fmt: skip
        return Launch([*self._program, *command[1:]], self.environment(), self.cli.given(prompt), self._grace)

    def check_program(self) -> None:
        """See that the program is there, before anything is written down about it.

        Raises:
            ModelRefused: it is not; nothing was begun.
        """
        if shutil.which(self._program[0], path=self.environment().get("PATH")) is None:
            raise ModelRefused(f"there is no program {self._program[0]!r} here; {self.cli.install}")

    def environment(self) -> dict[str, str]:
        """Return the environment that it is started in."""
        patterns = (*_COMMON, *self.cli.passes)
        passed = {name: value for name, value in os.environ.items() if any(fnmatchcase(name, one) for one in patterns)}
        return passed | self._env

    async def hold(self, workspace: str) -> Directory | None:
        """Return the directory, held; None while another program is at work there.

        Raises:
            ModelRefused: there is no such directory.
        """
        try:
            return await Directory.hold(workspace, self._grace + _WAIT_SECONDS)
        except OSError as error:
            raise ModelRefused(f"the workspace {workspace} cannot be used: {error.strerror}") from error


class ClaudeCode(Coding):
    """Claude Code takes the turns: `claude --print`, whose sessions are named before they are begun."""

    def __init__(self, **options: Unpack[CodingOptions]) -> None:
        """Describe how it is started; the keywords are those of `Coding`."""
        super().__init__(CLAUDE_CODE, **options)


class Codex(Coding):
    """Codex takes the turns: `codex exec`, which names its sessions itself."""

    def __init__(self, **options: Unpack[CodingOptions]) -> None:
        """Describe how it is started; the keywords are those of `Coding`."""
        super().__init__(CODEX, **options)


class CodingSession:
    """A coding program at work for one turn."""

    def __init__(self, harness: Coding, start: Start, workspace: str) -> None:
        self._harness, self._start, self._workspace = harness, start, workspace

    def create(self, ask: Ask) -> AsyncIterator[Event]:
        """Begin an exchange; one that was begun under this key is gone on with."""
        return self._take(ask, None)

    def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncIterator[Event]:
        """Go on with an exchange in its session, or tell again how it ended."""
        return self._take(ask, msgspec.convert(handle, Handle))

    async def find(self, ask: Ask) -> Any:
        """Look for what was written under this key; it is not asked for, since one key is one exchange."""
        spools = self._harness.spools
        return msgspec.to_builtins(Handle(spools.place())) if spools.has(ask.key) else None

    async def cancel(self, handle: Any) -> None:
        """See that nobody is at work any more: what this process had started it has ended, and a dead worker's ends."""
        directory = await self._harness.hold(self._workspace)
        if directory is not None:
            directory.release()

    async def close(self) -> None:
        """Let go of nothing: a program is ended where its events are no more asked for."""

    async def _take(self, ask: Ask, handle: Handle | None) -> AsyncGenerator[Event, None]:
        harness, start = self._harness, self._start
        harness.check_program()
        cursor = harness.read_cursor(ask.cursor, self._workspace)
        prompt = prompt_of(ask.messages, start.output)
        exchange = Exchange(harness, Wish(ask.key, prompt, start.instructions, self._workspace, cursor))
        try:
            async with aclosing(exchange.events(handle)) as events:
                async for event in events:
                    yield event
        finally:
            exchange.close()
