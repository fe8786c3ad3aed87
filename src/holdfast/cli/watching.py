"""One run, watched from where this process found it to where it comes to rest."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from holdfast import events as ev
from holdfast.cli.bill import Bill, bill_of
from holdfast.cli.lines import Stopwatch
from holdfast.cli.speech import Speech
from holdfast.cli.surface import Surface
from holdfast.client.protocol import Client, Question, RunInfo
from holdfast.core.ids import RunId
from holdfast.core.message import USER
from holdfast.core.status import Effect, Status
from holdfast.runtime import Runtime
from holdfast.stream.event import Event


@dataclass(frozen=True)
class Rest:
    """Where a run came to rest, and what holds it up there."""

    info: RunInfo
    answered: bool = False
    """The answer stands on the screen."""
    held: RunInfo | None = None
    """A descendant that holds it up."""
    questions: Sequence[Question] = ()
    doubted: str | None = None
    """The step that waits for a person's word."""
    bill: Bill | None = None

    @property
    def stuck(self) -> RunInfo:
        """The run that needs something: itself, or the descendant that holds it up."""
        return self.held or self.info


class Watching:
    """A watcher of one run, who may be stopped and go on."""

    def __init__(self, surface: Surface, client: Client, run: RunId, screen: Console | None) -> None:
        self._client, self.run = client, run
        self._speech = Speech(surface, client, screen)
        self._watch = Stopwatch()
        self._seen: str | int = 0
        self._doubted: str | None = None
        self._spoke = False
        self.under_way: dict[str, None] = {}
        """The `once` steps with an intent and no outcome."""

    async def remember(self, up_to: int) -> int:
        """Take what was recorded before without telling it; return how many steps had an outcome."""
        recorded = 0
        async for event in self._client.events(self.run, follow=False):
            recorded += isinstance(event, ev.StepCompleted)
            recorded += isinstance(event, ev.StepResolved) and event.outcome == "done"
            recorded += isinstance(event, ev.MessageAdded) and event.role != USER
            self._note(event)
            await self._speech.remember(event)
            self._seen = event.id or self._seen
            if event.id == str(up_to):
                break
        return recorded

    async def until_rest(self, runtime: Runtime) -> Rest:
        """Tell what happens until the run has ended, or needs somebody."""
        with self._speech.working():
            telling = asyncio.create_task(self._tell(follow=True))
            try:
                ending = await runtime._wait_or_trouble(self.run)
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            await self._tell(follow=False)
        info = await self._client.info(self.run)
        bill = await bill_of(self._client, self.run) if self._spoke else None
        answered = self._speech.answered
        if ending.held_by is not None:
            held = await self._client.info(ending.held_by)
            questions = await self._client.questions(ending.held_by)
            doubted = await self._doubt_of(ending.held_by)
            return Rest(info, answered, held=held, questions=questions, doubted=doubted, bill=bill)
        asks = info.status is Status.WAITING and info.reason.startswith("ask")
        questions = await self._client.questions(self.run) if asks else ()
        return Rest(info, answered, questions=questions, doubted=self._doubted, bill=bill)

    async def _doubt_of(self, run: RunId) -> str | None:
        """Return the step that a descendant rests for, if its outcome is not known."""
        doubted = None
        async for event in self._client.events(run, follow=False):
            if isinstance(event, ev.RunParked):
                doubted = event.step if event.reason == "doubt" else None
        return doubted

    async def _tell(self, *, follow: bool) -> None:
        async for event in self._client.events(self.run, after=self._seen or None, follow=follow):
            await self._speech.tell(event, self._note(event))
            # Only now: who is stopped before tells it again.
            self._seen = event.id or self._seen

    def _note(self, event: Event) -> int | None:
        """Keep what is needed of an event when the run rests, and return how long its step took."""
        self._spoke = self._spoke or isinstance(event, ev.MessageAdded)
        if isinstance(event, ev.RunParked):
            self._doubted = event.step if event.reason == "doubt" else None
        if isinstance(event, ev.StepStarted) and event.effect is Effect.ONCE:
            self.under_way[event.step] = None
        elif isinstance(event, ev.StepCompleted | ev.StepFailed | ev.StepResolved | ev.MessageAdded):
            self.under_way.pop(event.step or "", None)
        return self._watch.took(event)
