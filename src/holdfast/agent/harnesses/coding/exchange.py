"""One exchange with a coding program: which session it is had in, whether that is resumed, and what came of it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Struct

from holdfast.agent.harness import Ended, Event, HarnessFailed, Known, Rests, Told
from holdfast.agent.harnesses.coding.cli import Cli, Named, Over
from holdfast.agent.harnesses.coding.hearing import Hearing
from holdfast.agent.harnesses.coding.program import Directory, Ending, Launch, NotStarted, Program, running
from holdfast.agent.harnesses.coding.spool import LineTooLong, Spools
from holdfast.agent.model import ModelBusy, ModelCut, ModelRefused
from holdfast.core.codec import encode
from holdfast.core.errors import InvalidInput
from holdfast.core.message import ASSISTANT, Media, Message, Text, Usage

_LAUNCHES: Final = 4
"""How many programs one look at an exchange starts at most, where sessions turn out not to be there, or to be."""
_NO_PROGRAM: Final = (126, 127)
"""How a shell says that there is no such program, or none that can be executed."""
_AGAIN: Final = """\
You were stopped before you had answered the request below. What you had done until then is in this session and in the
working directory; a command that was under way may or may not have taken effect. Look at what is there first, then go
on from it; do not begin anew.

The request:

"""
_FORM: Final = "\n\nAnswer with JSON alone, without a word around it, of this JSON Schema:\n"


class Cursor(Struct, frozen=True, omit_defaults=True):
    """Where a conversation stands."""

    session: str
    workspace: str
    """Where the session was begun; programs find it again only from there."""
    key: str = ""
    """Of the exchange that came to it."""
    totals: Usage | None = None
    """What the session had taken then, by the program's own account."""


class Handle(Struct, frozen=True, omit_defaults=True):
    """How an exchange is found again; written before anything is started."""

    place: str
    """Which folder of spools has what the program wrote."""
    session: str | None = None


class Wish(Struct, frozen=True):
    """What an exchange is about."""

    key: str
    prompt: str
    instructions: str
    workspace: str
    cursor: Cursor | None


class Starter(Protocol):
    """Whoever knows how the program is started here."""

    cli: Cli
    spools: Spools
    rest_seconds: float

    async def hold(self, workspace: str) -> Directory | None:
        """Return the directory, held; None while another program is at work there."""
        ...

    def launch(self, wish: Wish, prompt: str, session: str | None, *, resumes: bool) -> Launch:
        """Return one start of the program."""
        ...


class Exchange:
    """One exchange. Before a program is started for it, all is read that others wrote which are gone."""

    def __init__(self, starter: Starter, wish: Wish) -> None:
        self._starter, self._cli, self._wish = starter, starter.cli, wish
        self._spool = starter.spools.of(wish.key)
        self._hearing = Hearing(starter.cli.read)
        self._place = starter.spools.place()
        self._session: str | None = None
        self._resumes = False
        """Whether the session is there already."""
        self._broken = False
        """Whether it was told the request already, and was stopped before it had answered."""
        self._lookable = True
        """Whether all that was started for the exchange was started here."""
        self._taken = False

    async def events(self, handle: Handle | None) -> AsyncGenerator[Event, None]:
        """Yield what comes of the exchange; what has ended is told again, and nothing is started for it.

        Raises:
            ModelError: it has not ended, and may be gone on with later, or not as it is.
            HarnessFailed: it wrote more than is taken.
        """
        if handle is None:
            handle = Handle(self._place, self._new_session())
            yield self._known(handle.session)
        over: Over | None = None
        for _ in range(_LAUNCHES):
            directory = await self._starter.hold(self._wish.workspace)
            if directory is None:
                yield Rests(f"another program is at work in {self._wish.workspace}", self._starter.rest_seconds)
                return
            try:
                await asyncio.to_thread(self._catch_up)
                if self._hearing.is_final:
                    over = self._hearing.over
                    break
                if over is None:
                    self._find_session(handle)
                async with aclosing(self._launch(directory)) as launched:
                    async for event in launched:
                        if isinstance(event, Over):
                            over = event
                        else:
                            yield event
            finally:
                directory.release()
            assert over is not None  # it is the last that a launch tells
            if not self._turns_elsewhere(over):
                break
            yield self._known(self._session)
        assert over is not None
        yield self._outcome(over)

    def close(self) -> None:
        """Let go of what was written."""
        self._spool.close()

    def _catch_up(self) -> None:
        try:
            while some := self._spool.read():
                for line in some:
                    self._hearing.hear(line)
        except LineTooLong as error:
            raise self._too_much(str(error)) from error

    # Which session

    def _new_session(self) -> str | None:
        """Return the session that the exchange is to be had in, where that is known before it begins."""
        if self._wish.cursor is not None:
            return self._wish.cursor.session
        return self._chosen() if self._cli.chooses else None

    def _find_session(self, handle: Handle) -> None:
        """Decide in which session to go on.

        Raises:
            ModelRefused: the exchange was begun elsewhere, and nobody here knows in which.
        """
        cursor, hearing = self._wish.cursor, self._hearing
        self._lookable = handle.place == self._place
        self._broken = hearing.launches > 0 or not self._lookable
        self._session = hearing.session or handle.session
        if self._session is None and not self._lookable:
            raise ModelRefused(
                f"{self._cli.name} was started where its session is not known here, and was stopped there"
            )
        self._resumes = self._session is not None and (cursor is not None or self._broken)
        if cursor is not None and cursor.key != self._wish.key:
            self._starter.spools.drop(cursor.key)  # what it came to is committed

    def _chosen(self, number: int = 0) -> str:
        """Return the name of a new session: the same for whoever asks about this exchange."""
        return str(uuid5(NAMESPACE_URL, f"holdfast:{self._wish.key}:{number}"))

    def _turns_elsewhere(self, over: Over) -> bool:
        """Say whether another start will help: the session is not there and was only to be begun, or is there."""
        cursor = self._wish.cursor
        if over.how == "session_taken" and not self._resumes:
            # Nobody else can have chosen it: it was begun by a start of this exchange.
            self._resumes = self._broken = not self._taken
            self._session = self._session if self._resumes else self._chosen(self._hearing.launches)
            self._taken = True
            return True
        began_here = cursor is None or self._session != cursor.session
        if over.how == "no_session" and self._resumes and began_here and self._lookable:
            # It was stopped before anything was said in it.
            self._session = self._session if self._cli.chooses and not self._taken else None
            if self._session is None and self._cli.chooses:
                self._session = self._chosen(self._hearing.launches)
            self._resumes = self._broken = False
            return True
        return False

    def _known(self, session: str | None) -> Known:
        return Known(msgspec.to_builtins(Handle(self._place, session)))

    # One start

    async def _launch(self, directory: Directory) -> AsyncGenerator[Event | Over, None]:
        """Start the program; yield what it says, and how it ended last."""
        wish = self._wish
        prompt = _AGAIN + wish.prompt if self._broken else wish.prompt
        launch = self._starter.launch(wish, prompt, self._session, resumes=self._resumes)
        try:
            async with running(launch, directory, self._spool) as program:
                async with aclosing(program.lines(self._spool)) as lines:
                    async for line in lines:
                        for event in self._heard(line):
                            yield event
                ending = await program.ended()
        except NotStarted as error:
            why = f"{error}; {self._cli.install}" if error.missing else str(error)
            raise ModelRefused(why) from error
        except LineTooLong as error:
            raise self._too_much(str(error)) from error
        if ending.overflowed:
            raise self._too_much(f"it wrote more than {launch.output_bytes} bytes")
        yield self._hearing.over or self._unsaid(ending, program)

    def _heard(self, line: bytes) -> list[Event]:
        events: list[Event] = []
        for heard in self._hearing.hear(line):
            if not isinstance(heard, Named):
                events.append(Told(heard))
            elif heard.session and heard.session != self._session:
                self._session = heard.session
                events.append(self._known(self._session))
        return events

    def _unsaid(self, ending: Ending, program: Program) -> Over:
        """Return how a turn ended of which the program has not said it."""
        complaint = str(program.tail)
        why = f"{self._cli.name} {ending} before it had answered" + (f": {complaint}" if complaint else "")
        if ending.status in _NO_PROGRAM:
            return Over(how="refused", why=f"{why}; {self._cli.install}")
        how = self._cli.why_not(complaint)
        if how is None:
            # One that refuses its arguments says so before it says anything else.
            how = "refused" if ending.status and not self._hearing.heard else "cut"
        return Over(how=how, why=why)

    def _too_much(self, why: str) -> HarnessFailed:
        return HarnessFailed(f"{self._cli.name}: {why}")

    # What came of it

    @property
    def _text(self) -> str:
        over = self._hearing.over
        return over.text if over is not None and over.text is not None else self._hearing.text

    def _outcome(self, over: Over) -> Ended:
        if over.how in ("completed", "limit"):
            return self._ended()
        why = f"{self._cli.name}: {over.why}" if not over.why.startswith(self._cli.name) else over.why
        match over.how:
            case "busy":
                raise ModelBusy(why)
            case "cut":
                raise ModelCut(why)
            case "no_session":
                raise ModelRefused(
                    f"the session {self._session} is not there any more, and none is begun in its place: {why}"
                )
        raise ModelRefused(why)

    def _ended(self) -> Ended:
        hearing, over, cursor = self._hearing, self._hearing.over, self._wish.cursor
        assert over is not None
        session = hearing.session or self._session or self._new_session()
        assert session is not None
        before = cursor.totals if cursor is not None and cursor.session == session else None
        stands = Cursor(session, self._wish.workspace, self._wish.key, hearing.totals(before))
        return Ended(
            message=Message(ASSISTANT, (Text(self._text),)),
            cursor=msgspec.to_builtins(stands),
            how="completed" if over.how == "completed" else "limit",
            why=over.why,
            usage=hearing.usage(before),
            model=hearing.model,
        )


def prompt_of(messages: Sequence[Message], output: Mapping[str, Any] | None) -> str:
    """Return what a program is told: all that was said since its last answer, and which form that shall have.

    Raises:
        InvalidInput: there is something that is no text.
    """
    if any(isinstance(part, Media) for message in messages for part in message.parts):
        raise InvalidInput("a coding program is told text: put files into its workspace")
    said = "\n\n".join(message.text for message in messages if message.text)
    return said + (_FORM + encode(output).decode() if output is not None else "")
