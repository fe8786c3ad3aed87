"""A loop that is not ours, made durable: it asks for steps from any of its tasks, and the run's own task takes them."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, TypeVar

import anyio

import holdfast as hf

R = TypeVar("R")
Perform = Callable[["hf.Step[Any]"], Awaitable[Any]]
Verb = Callable[["hf.Context"], Awaitable[Any]]

_RELAY: Final[ContextVar["Relay | None"]] = ContextVar("holdfast.integrations.relay", default=None)
_STEP: Final[ContextVar["hf.Step[Any] | None"]] = ContextVar("holdfast.integrations.step", default=None)


async def durably(ctx: hf.Context, work: Awaitable[R], /) -> R:
    """Let a framework's agent run inside a durable function, its model and its tools being steps of the run.

    `await durably(ctx, agent.run("hello"))`. Several go on beside each other by `ctx.gather(durably(ctx, a), ...)`.
    """
    return await Relay(ctx).run(work)


def current_relay() -> "Relay | None":
    """Return the relay of the durable run that this code is part of; None outside of one, and inside of a step."""
    return _RELAY.get() if _STEP.get() is None else None


def step_here() -> "hf.Step[Any] | None":
    """Return the step that this code is performed in; None outside of one."""
    return _STEP.get()


def current_step() -> "hf.Step[Any]":
    """Return the step that a framework's tool is being called in: its idempotency key, its attempt, `emit`, `deps`.

    Raises:
        LookupError: it is called outside of a step.
    """
    step = _STEP.get()
    if step is None:
        raise LookupError("there is no step here: a tool is called in one when its agent runs by `durably`")
    return step


class Abandoned(Exception):
    """The framework stopped waiting for what it had asked for, so that it was cut off."""


class Relay:
    """One loop under way: what its tasks ask for, and what the run's own task answers.

    Calls that a framework makes beside each other are announced by `expect`: each is a branch of its own then.
    """

    def __init__(self, ctx: hf.Context) -> None:
        self._ctx = ctx
        self._id, self._ids = str(ctx.uuid()), 0
        self._asked: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._sets: dict[str, tuple[str, ...]] = {}
        """Which places are beside each other, by each of them."""
        self._lanes: dict[str, asyncio.Queue[_Request | None]] = {}
        """The places that have a branch now."""
        self._closed = False

    async def run(self, work: Awaitable[R]) -> R:
        """Return what the loop returned, having taken every step that it asked for."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._within(work))
        task.add_done_callback(lambda _: self._put(None))
        try:
            while (request := await self._asked.get()) is not None:
                await self._answer(request)
        finally:
            self._closed = True
            await _ended(task)
            self._turn_away()
            if inspect.iscoroutine(work):
                work.close()  # of a task that was cancelled before it began, nobody else does
        return task.result()

    def _turn_away(self) -> None:
        """Answer those who still ask though the loop has ended: tasks that a framework left behind."""
        while not self._asked.empty():
            if (request := self._asked.get_nowait()) is not None:
                request.errand.inbox.put_nowait(_Outcome(error=Abandoned("the loop that it belongs to has ended")))

    async def _within(self, work: Awaitable[R]) -> R:
        _RELAY.set(self)
        return await work

    def expect(self, places: Sequence[str]) -> None:
        """Say which calls may be made beside each other from now on, as it stands in the journal."""
        together = tuple(dict.fromkeys(places))
        if len(together) > 1:
            self._sets.update(dict.fromkeys(together, together))

    def next_id(self) -> str:
        """Return another id, the same whenever the run is resumed."""
        self._ids += 1
        return f"{self._id}:{self._ids}"

    async def now(self) -> datetime:
        """Return the time, the same whenever the run is resumed."""

        async def verb(ctx: hf.Context) -> datetime:
            return ctx.now()

        found: datetime = await self.call(verb)
        return found

    async def step(self, name: str, perform: Perform, *args: Any, place: str | None = None, **options: Any) -> Any:
        """Return what a step came to, as `ctx.step` does; what it performs runs in the task that asks.

        So it has the framework's own context variables and cancel scopes. `place` is which of the expected calls it
        belongs to.

        Raises:
            StepError: it failed, now or when it was first performed.
            InDoubt: it may or may not have happened.
        """
        errand = _Errand(perform)
        request = _Request(lambda ctx: ctx.step(errand, *args, name=name, **options), errand)
        return await self._ask(request, place)

    async def call(self, verb: Verb, *, place: str | None = None) -> Any:
        """Return what a verb of the context returns."""
        return await self._ask(_Request(verb, _Errand(None)), place)

    async def _ask(self, request: "_Request", place: str | None) -> Any:
        if self._closed:
            raise asyncio.CancelledError("the run that this belongs to has left its code")
        lane = self._lanes.get(place or "")
        if lane is not None:
            lane.put_nowait(request)
        else:
            request.place = place if place in self._sets else None
            self._put(request)
        return await request.errand.attend()

    def _put(self, request: "_Request | None") -> None:
        """Ask for what comes next in order: the branches that are open end before it."""
        self._asked.put_nowait(request)
        for lane in self._lanes.values():
            lane.put_nowait(None)
        self._lanes = {}

    async def _answer(self, request: "_Request") -> None:
        if request.place is None:
            await request.take(self._ctx)
            return
        lanes: dict[str, asyncio.Queue[_Request | None]] = {
            place: asyncio.Queue() for place in self._sets[request.place]
        }
        lanes[request.place].put_nowait(request)
        self._lanes = lanes
        self._route(lanes)
        await self._ctx.gather(*(self._follow(lane) for lane in lanes.values()))

    def _route(self, lanes: "dict[str, asyncio.Queue[_Request | None]]") -> None:
        """Let what was asked for meanwhile go to its branch, up to the first that belongs to none."""
        waiting = [self._asked.get_nowait() for _ in range(self._asked.qsize())]
        for number, request in enumerate(waiting):
            if request is None or request.place not in lanes:
                for rest in waiting[number:]:
                    self._put(rest)
                return
            lanes[request.place].put_nowait(request)

    async def _follow(self, lane: "asyncio.Queue[_Request | None]") -> None:
        while (request := await lane.get()) is not None:
            await request.take(self._ctx)


class _Request:
    """A verb that a task of the loop asks for."""

    def __init__(self, verb: Verb, errand: "_Errand") -> None:
        self._verb, self.errand = verb, errand
        self.place: str | None = None

    async def take(self, ctx: hf.Context) -> None:
        """Call the verb, and tell whoever asked what came of it; what unwinds the run is not told but raised."""
        try:
            value = await self._verb(ctx)
        except Exception as error:
            self.errand.inbox.put_nowait(_Outcome(error=error))
        else:
            self.errand.inbox.put_nowait(_Outcome(value))


class _Outcome:
    """What came of a verb."""

    def __init__(self, value: Any = None, *, error: Exception | None = None) -> None:
        self.value, self.error = value, error


class _Attempt:
    """One time that a step is performed, by the task that asked for it."""

    def __init__(self, step: "hf.Step[Any]") -> None:
        self.step = step
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._begun = False

    async def perform(self, perform: Perform) -> None:
        """Perform it and say what came of it; a failure is the step's, and whoever asked is told by its outcome."""
        if self.ended.is_set():
            return  # cut off before it began
        token = _STEP.set(self.step)
        self._begun = True
        try:
            with self._scope:
                self._say(await perform(self.step))
        except Exception as error:
            self._fail(error)
        except BaseException:
            self._fail(Abandoned("it was cut off by the framework that had asked for it"))
            raise
        finally:
            self.ended.set()  # first: whoever waits for it must not wait for ever
            _STEP.reset(token)

    async def wait(self) -> Any:
        """Return what it came to; cancelled, it is cut off and has ended before this returns."""
        try:
            return await self.reply
        except asyncio.CancelledError:
            self._scope.cancel()
            if not self._begun:
                self.ended.set()
            while not self.ended.is_set():
                try:
                    await self.ended.wait()
                except asyncio.CancelledError:
                    continue
            raise

    def abandon(self) -> None:
        """Say that nobody is there to perform it."""
        self._fail(Abandoned("the framework did not wait for it"))
        self.ended.set()

    def _say(self, value: Any) -> None:
        if not self.reply.done():
            self.reply.set_result(value)

    def _fail(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


class _Errand:
    """A step function whose work is done by another task: as often as the step is attempted, until it has an outcome.

    It cannot be hashed, so that no table of known step functions keeps it.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, perform: Perform | None) -> None:
        self._perform = perform
        self.inbox: asyncio.Queue[_Attempt | _Outcome] = asyncio.Queue()
        self._gone = False

    async def __call__(self, step: hf.Step[Any], *args: Any) -> Any:
        attempt = _Attempt(step)
        if self._gone:
            attempt.abandon()
        else:
            self.inbox.put_nowait(attempt)
        return await attempt.wait()

    async def attend(self) -> Any:
        """Perform what is asked for until there is an outcome, and return that; called by the task that asked."""
        try:
            while isinstance(message := await self.inbox.get(), _Attempt):
                assert self._perform is not None
                await message.perform(self._perform)
            if message.error is not None:
                raise message.error
            return message.value
        finally:
            self._gone = True
            while not self.inbox.empty():
                if isinstance(left := self.inbox.get_nowait(), _Attempt):
                    left.abandon()


async def _ended(task: "asyncio.Task[Any]") -> None:
    """Cancel a task unless it is done, and wait until it is, however often whoever waits is cancelled meanwhile."""
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue  # whoever is here is on the way out already
    if not task.cancelled():
        task.exception()  # looked at: what unwinds the run is raised in its place
