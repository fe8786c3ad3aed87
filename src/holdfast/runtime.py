"""The composition root: open a store, start a worker, hand out a client."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, overload

from msgspec import Raw

from holdfast.client.conversation import Conversation
from holdfast.client.held import left_by
from holdfast.client.local import LocalClient
from holdfast.client.protocol import CallbackInfo, Client, Collected, Ending, Finding, Question, Retention, RunSummary
from holdfast.client.run import Run
from holdfast.client.starting import Begun, FunctionInfo, ParameterInfo, Starter
from holdfast.core import limits
from holdfast.core.budget import Budget, checked_budget
from holdfast.core.codec import Codec
from holdfast.core.errors import (
    Conflict,
    Damaged,
    HoldfastError,
    InvalidInput,
    Misuse,
    NoStore,
    NotFound,
    StoreRefused,
)
from holdfast.core.ids import TENANT, RunId, checked_text, run_id
from holdfast.core.retry import checked_seconds
from holdfast.core.status import TERMINAL, Status
from holdfast.core.stepkey import join_key
from holdfast.engine.app import App
from holdfast.engine.contender import Told, nobody
from holdfast.engine.function import Durable, OnlyDurable
from holdfast.engine.lock import is_held
from holdfast.engine.log import Log
from holdfast.engine.payload import Secrets
from holdfast.engine.refusing import by_place, refuse_plain
from holdfast.engine.starting import complete, find_function, read_input, startable, type_of
from holdfast.engine.surroundings import Surroundings
from holdfast.engine.worker import Worker
from holdfast.store.protocol import Store
from holdfast.store.start import Start
from holdfast.store.value import RunRow

if TYPE_CHECKING:
    from holdfast.engine.preflight import Preflight
    from holdfast.engine.scheduler import Scheduler

R = TypeVar("R")
T = TypeVar("T")
Args = TypeVarTuple("Args")
Key = str | tuple[str | int, ...]
DEFAULT_STORE: Final = "sqlite:///holdfast.db"


async def open_store(address: str, *, create: bool = True) -> Store:
    """Open the store at an address: `sqlite:///file.db` or `memory://`.

    Raises:
        InvalidInput: it is not text that can name anything.
        StoreRefused: there is no driver for it.
        StoreUnavailable: it cannot be opened, or is not there and `create` is False.
    """
    address = checked_text("the store's address", address, limits.ADDRESS_BYTES)
    scheme, separator, rest = address.partition("://")
    if scheme == "sqlite" and rest == "/:memory:":
        raise StoreRefused("a store in memory has the address memory://")
    if not separator:
        raise StoreRefused(f"{address!r} is not a store's address: write sqlite:///{address or 'holdfast.db'}")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        from holdfast.store.sqlite import SqliteStore  # lazy: only who uses SQLite loads it

        if not create and not os.path.exists(rest[1:]):
            raise NoStore(f"there is no store at {address}")
        return await SqliteStore.open(rest[1:])
    if scheme in ("postgresql", "postgres"):
        return await _open_postgres(address, create=create)
    if scheme == "memory":
        from holdfast.store.memory import MemoryStore  # lazy: only who uses it loads it

        return MemoryStore()
    raise StoreRefused(f"there is no driver for {address!r}: use sqlite:///file.db, postgresql://… or memory://")


async def _open_postgres(address: str, *, create: bool) -> Store:
    try:
        from holdfast.store.postgres import PostgresStore  # lazy: an extra, and only who uses PostgreSQL loads it
    except ModuleNotFoundError as error:
        refused = StoreRefused(
            f"a store on PostgreSQL needs {error.name}, which is not installed: pip install 'holdfast[postgres]'"
        )
        refused.hint = "Install it; or use sqlite:///file.db, where one machine is enough."
        raise refused from error
    return await PostgresStore.open(address, create=create)


async def open_archive(path: str, wanted: Callable[[RunRow], bool]) -> Store:
    """Return a store in memory with the wanted runs of an archive, to look at; of one that it holds twice, the last.

    Raises:
        InvalidInput: the file cannot be read, or is no archive.
        Damaged: none that is wanted is sound, and some run of the archive is not.
    """
    from holdfast.client.archive import read_archive  # lazy: few ask
    from holdfast.store.memory import MemoryStore  # lazy: only who uses it loads it

    store, found, wrong = MemoryStore(), False, list[Finding]()
    for run in read_archive(path, wrong=wrong.append):
        if wanted(run.row):
            store.hold(run.row, run.entries, run.blobs, run.shares)
            store.epoch, found = run.epoch, True
    if wrong and not found:
        raise Damaged(run=wrong[0].run or "", seq=wrong[0].seq, what=wrong[0].what)
    return store


class Runtime:
    """An open store, with a worker in this process unless it was opened with `work=False`."""

    def __init__(self, store: Store, app: App, *, concurrency: int, told: Told = nobody) -> None:
        self._store, self._app, self._concurrency, self._told = store, app, concurrency, told
        self._client = LocalClient(store)
        self._client.here.is_held = lambda worker: is_held(store.lock_folder, worker.lock)
        self._worker: Worker | None = None
        self._scheduler: Scheduler | None = None
        self._closing = AsyncExitStack()
        self._portal: Any = None
        self._watched = False

    @property
    def client(self) -> Client:
        """Every operation that anyone may ask for."""
        return self._client

    @property
    def starter(self) -> Starter:
        """The functions of this runtime's app, to be started by name."""
        return _ByName(self, self._app)

    @property
    def worker_id(self) -> str | None:
        """Under which name this process works now; None when it does not."""
        return self._worker.id if self._worker is not None else None

    async def _start_working(self, only: set[RunId] | None) -> None:
        around = self._surroundings(await self._build_deps())
        self._closing.callback(around.threads.close)
        self._worker = Worker(self._store, self._app, around, concurrency=self._concurrency, told=self._told)
        await self._worker.start(only=only)
        self._client.here.serves = self._worker.versions.serves
        self._client.here.refusal = self._worker.refusal
        if only is None and self._app.schedules:
            from holdfast.engine.scheduler import Scheduler  # lazy: only who has schedules loads it

            self._scheduler = Scheduler(self._store, list(self._app.schedules.values()), self._begin, around.log)
            self._scheduler.start()

    async def _begin(
        self, what: Durable[Any, ...], named: dict[str, Any], /, *, key: tuple[str, ...],
        labels: Mapping[str, str],
    ) -> RunId:  # fmt: skip
        try:
            return (await self.start_named(what, named, key=key, labels=labels)).id
        except (Conflict, Damaged) as known:
            # The run is there: damaged, or from before its function or its arguments were changed.
            return RunId(known.run or "")

    async def _stop_starting(self) -> None:
        if self._scheduler is not None:
            await self._scheduler.stop()

    def _surroundings(self, deps: Any) -> Surroundings:
        around = Surroundings(deps=deps, secrets=Secrets(self._app.secrets), log=Log())
        around.watched = self._watched
        return around

    async def _build_deps(self) -> Any:
        if self._app.deps is None:
            return None
        deps = self._app.deps()
        if inspect.isawaitable(deps):
            deps = await deps
        if hasattr(deps, "__aenter__"):
            return await self._closing.enter_async_context(deps)
        if hasattr(deps, "__enter__") and hasattr(deps, "__exit__"):
            return self._closing.enter_context(deps)
        return deps

    @by_place("runtime.start")
    async def start(
        self,
        what: Callable[[OnlyDurable, *Args], Awaitable[R]],
        /,
        *args: *Args,
        key: Key | None = None,
        labels: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        pin: bool = False,
        budget: Budget | None = None,
        conversation: str | None = None,
    ) -> Run[R]:
        """Start a run, or find the one that `key` belongs to: same key, same run.

        With a `conversation` it is the next turn of it, and waits for those before. With a `budget` it rests once that
        is used up. With `pin` only code of the same version drives it, whatever is deployed meanwhile.

        Raises:
            Conflict: the key was used with another function or input.
            InvalidInput: an argument is not data, or the key cannot be kept.
        """
        refuse_plain("runtime.start", what)
        assert isinstance(what, Durable)
        return await self.start_named(
            what,
            what.bind(args),
            key=key,
            labels=labels,
            delay=delay,
            pin=pin,
            budget=budget,
            conversation=conversation,
        )

    async def start_named(
        self,
        what: Durable[R, ...],
        named: dict[str, Any],
        /,
        *,
        key: Key | None = None,
        labels: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        pin: bool = False,
        budget: Budget | None = None,
        conversation: str | None = None,
        if_idle: bool = False,
    ) -> Run[R]:
        """Do as `start`, with the arguments by name; any that has a default may be left out."""
        self._app.add(what)
        # Looked at before there is a run: one that could never store its result is not started.
        codec = what.result
        secrets = Secrets(self._app.secrets)
        worker = self._worker
        if worker is not None and not worker.versions.is_complete:
            await worker.versions.enrol()
        start = Start(
            name=what.name,
            input=secrets.redact(what.encode_input(named)),
            key=join_key(key) if key is not None else None,
            code=self._app.code(what),
            place=(worker.versions.of(what.name).place or 0) if worker is not None else 0,
            pin=bool(pin) or what.pin,
            labels=secrets.redact_labels(labels) if labels else {},
            delay_seconds=checked_seconds("delay=", delay) if delay is not None else 0.0,
            budget=checked_budget(budget) or what.budget,
            conversation=conversation,
        )
        if worker is not None and not start.delay_seconds and (worker.has_room or await worker.finds_room()):
            with worker.place() as take:
                begun = await self._client.begin(start, worker=worker.id, take=take, if_idle=if_idle)
        else:
            begun = await self._client.begin(start, if_idle=if_idle)
        if worker is not None:
            worker.add_run(begun.run)
        return Run(self._client, begun.run, codec, created=begun.created)

    def conversation(self, conversation: str, agent: Durable[R, [str]]) -> Conversation[R]:
        """Return a durable chat with an agent, by its id; it begins with the first message.

        The agent may be any durable function of one text. Other processes may send to it at the same time: its turns
        are taken one at a time, in the order in which they came.
        """
        refuse_plain("runtime.conversation", agent)
        begin = partial(self._turn, agent, conversation)
        return Conversation(self._store, self._client, conversation, begin, agent.result, (agent.name, *agent.aliases))

    async def _turn(
        self, agent: Durable[R, [str]], conversation: str, text: str, *, key: str | None, if_idle: bool
    ) -> Run[R]:
        return await self.start_named(
            agent, agent.bind((text,)), key=key, conversation=conversation, if_idle=if_idle
        )  # fmt: skip

    @by_place("runtime.run")
    async def run(
        self,
        what: Callable[[OnlyDurable, *Args], Awaitable[R]],
        /,
        *args: *Args,
        key: Key | None = None,
        budget: Budget | None = None,
    ) -> R:
        """Start a run and return its result."""
        refuse_plain("runtime.run", what)
        return await (await self.start(what, *args, key=key, budget=budget)).result()

    @overload
    async def get(self, run: str | None = None, *, key: Key | None = None, of: None = None) -> Run[Any]: ...
    @overload
    async def get(self, run: str | None = None, *, key: Key | None = None, of: Durable[R, ...]) -> Run[R]: ...
    async def get(
        self, run: str | None = None, *, key: Key | None = None, of: Durable[Any, ...] | None = None
    ) -> Run[Any]:
        """Return the handle of a run by id or by key; `of` gives its result a type.

        Raises:
            NotFound: there is none.
        """
        if (run is None) == (key is None):
            raise InvalidInput("give a run's id or its key, and not both")
        known = await self._client.find(join_key(key)) if key is not None else run_id(run or "")
        if not await self._client.match(known):
            raise NotFound(f"run {known}")
        codec: Codec | None = of.result if of is not None else None
        return Run(self._client, known, codec)

    async def runs(
        self,
        *,
        status: Status | str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> Sequence[RunSummary]:
        """Return a page of runs, newest first."""
        if status is not None and status not in list(Status):
            raise InvalidInput(f"status= is one of {', '.join(Status)}, not {status!r}")
        wanted = Status(status) if status is not None else None
        return await self._client.runs(status=wanted, name=name, labels=labels, before=before, limit=limit)

    async def questions(self) -> Sequence[Question]:
        """Return what waits for a person's decision, the oldest first."""
        return await self._client.questions()

    async def answer(
        self,
        question: Question | str,
        yes: bool,
        *,
        shown: str | None = None,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        note: str | None = None,
    ) -> None:
        """Answer a question, for exactly what was shown: one that `questions` gave, or its id and digest.

        Raises:
            NotFound: nobody asks that, or not any more.
            Conflict: it was answered before, or something else was shown.
            InvalidInput: it is not decided by True or False, or what cannot be changed was.
        """
        digest = question.shown if isinstance(question, Question) else shown
        if digest is None:
            raise InvalidInput("an answer to a question's id names the digest of what was shown: shown=")
        known = question.id if isinstance(question, Question) else question
        await self._client.answer(known, yes, shown=digest, args=args, by=by, note=note)

    async def callback(self, token: str) -> CallbackInfo:
        """Return what a callback token is for, and whether it can still be answered.

        Raises:
            NotFound: it is no token of this store, or its run was deleted.
        """
        return await self._client.callback(token)

    async def answer_token(
        self,
        token: str,
        answer: Any,
        *,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        note: str | None = None,
    ) -> None:
        """Answer the one wait that a callback token is for: True or False to a question, a value to anything else.

        The same answer again is the same answer.

        Raises:
            NotFound: it is no token of this store, or its run was deleted.
            Conflict: it was answered otherwise before, or nobody waits for it any more.
        """
        await self._client.answer_token(token, answer, args=args, by=by, note=note)

    async def gc(
        self,
        older_than: float | timedelta,
        *,
        status: Collection[Status | str] = TERMINAL,
        name: str | None = None,
        keep: int = 0,
        archive: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
    ) -> Collected:
        """Delete the runs that ended longer ago than this, some at a time, and what only they needed.

        `keep` of each name stay, the newest. With `archive` each is on disk in that file before it goes. A run that
        another, still open one may need stays.

        Raises:
            Conflict: somebody else is adding to the archive.
            InvalidInput: the archive cannot be written, or is another kind of file.
        """
        wanted = [status] if isinstance(status, str) else list(status)
        if any(each not in list(Status) for each in wanted):
            raise InvalidInput(f"status= is some of {', '.join(sorted(TERMINAL))}, not {status!r}")
        policy = Retention(
            older_than_seconds=checked_seconds("older_than=", older_than),
            statuses=frozenset(Status(each) for each in wanted),
            name=name,
            keep=keep,
        )
        place = os.fspath(archive) if archive is not None else None
        return await self._client.gc(policy, archive=place, dry_run=dry_run)

    async def preflight(self, *, name: str | None = None) -> AsyncIterator["Preflight"]:
        """Yield what this app's code would make of every open run, newest first, or of every one of `name`.

        Each is replayed up to the end of what it recorded. Nothing is performed and nothing is written.
        """
        from holdfast.engine.preflight import preflight  # lazy: few ask

        if name is not None:
            checked_text("the name", name, limits.NAME_BYTES)
        async for found in preflight(self._store, self._app, tenant=TENANT, name=name):
            yield found

    async def _wait_or_trouble(self, run: RunId) -> Ending:
        """Wait for the one run of a plain call; a store that fails it is the caller's to know."""
        assert self._worker is not None
        waiting = asyncio.ensure_future(self._wait_with_children(run))
        try:
            either: set[asyncio.Future[Any]] = {waiting, self._worker.trouble}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise self._worker.trouble.result()
            return waiting.result()
        finally:
            waiting.cancel()

    async def _wait_with_children(self, run: RunId) -> Ending:
        """Wait for a run, and let the children that end with it do so here: nobody else may ever come."""
        assert self._worker is not None
        ending = await self._client.wait(run, or_person=True)
        for child in await left_by(self._store, run, self._worker.id) if ending.status.terminal else ():
            if self._worker.serves(child.name):
                self._worker.add_run(child.run)
                with suppress(HoldfastError):  # what becomes of a child is not the answer that is waited for
                    await self._wait_with_children(child.run)
        return ending

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait, from plain code, for something of this runtime: `rt.wait(rt.start(...))`."""
        if self._portal is None:
            raise Misuse("wait is for a runtime opened with a plain `with`; in async code use await")

        async def awaited() -> T:
            return await awaitable

        result: T = self._portal.call(awaited)
        return result

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Iterate, from plain code, over something of this runtime: `rt.iterate(run.events())`."""
        if self._portal is None:
            raise Misuse("iterate is for a runtime opened with a plain `with`; in async code use async for")
        while True:
            try:
                yield self._portal.call(items.__anext__)
            except StopAsyncIteration:
                return

    async def drain(self, grace_seconds: float | timedelta = limits.GRACE_SECONDS) -> None:
        """Stop working without losing any: claim nothing more, and hand each run over at its next entry.

        What has not come to one when the grace is over is interrupted and handed over there, without a charge. Runs can
        still be started and read; others drive them.
        """
        seconds = checked_seconds("grace_seconds=", grace_seconds)
        await self._stop_starting()
        if self._worker is not None:
            await self._worker.drain(seconds)

    async def close(self) -> None:
        """Stop working, give every lease back, and close the store."""
        try:
            await self._stop_starting()
            if self._worker is not None:
                await self._worker.stop()
        finally:
            try:
                await self._closing.aclose()
            finally:
                await self._store.close()


class _ByName:
    """Starts runs of an app's functions by name."""

    def __init__(self, runtime: Runtime, app: App) -> None:
        self._runtime, self._app = runtime, app

    def functions(self) -> Sequence[FunctionInfo]:
        return [
            FunctionInfo(
                name=part.name,
                version=self._app.code(part),
                parameters=[
                    ParameterInfo(name=each.name, type=type_of(each), required=each.default is each.empty)
                    for each in part.parameters
                ],
            )
            for part in startable(self._app)
        ]

    def conversation(self, conversation: str, name: str | None) -> Conversation[Any]:
        if name is not None:
            return self._runtime.conversation(conversation, find_function(self._app, name))
        return Conversation(self._runtime._store, self._runtime._client, conversation, _say_nothing)

    async def start(self, name: str, input: Raw | bytes | None, **options: Any) -> Begun:
        function = find_function(self._app, name)
        named = read_input(function, input, "input") if input is not None else complete(function, {})
        run = await self._runtime.start_named(function, named, **options)
        return Begun(run=run.id, created=run.created)


async def _say_nothing(text: str, *, key: str | None, if_idle: bool) -> Run[Any]:
    raise Misuse("nobody was named who answers in this conversation: it can only be read")


class Opening:
    """A runtime about to be opened: await it, or use it in `async with` or in a plain `with`."""

    def __init__(
        self,
        store: str | Store | None,
        app: App | None,
        *,
        work: bool,
        concurrency: int,
        only: set[RunId] | None = None,
        told: Told = nobody,
        watched: bool = False,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidInput(f"concurrency= is a whole number of at least 1, not {concurrency!r}")
        if app is not None and not isinstance(app, App):
            raise InvalidInput(f"hf.open wants an hf.App, not {app!r}")
        if store is not None and not isinstance(store, str) and not hasattr(store, "commit"):
            raise InvalidInput(f"hf.open wants a store's address, such as sqlite:///holdfast.db, not {store!r}")
        self._store, self._app, self._work, self._concurrency, self._only = store, app, work, concurrency, only
        self._told, self._watched = told, watched
        self._runtime: Runtime | None = None
        self._plain = ExitStack()

    if not TYPE_CHECKING:  # a type checker knows what it has

        def __getattr__(self, name: str) -> Any:
            message = f"'Opening' object has no attribute {name!r}"
            if hasattr(Runtime, name) and not name.startswith("_"):
                message = f"{name} is the runtime's: enter it first: `async with hf.open(...) as runtime`"
            raise AttributeError(message, name=name, obj=self)

    async def _open(self) -> Runtime:
        store = self._store
        if store is None or isinstance(store, str):
            store = await open_store(store or os.environ.get("HOLDFAST_STORE") or DEFAULT_STORE)
        runtime = self._runtime = Runtime(store, self._app or App(), concurrency=self._concurrency, told=self._told)
        runtime._watched = self._watched
        try:
            if self._work:
                await runtime._start_working(self._only)
        except BaseException:
            await runtime.close()
            raise
        return runtime

    def __await__(self) -> Generator[Any, None, Runtime]:
        return self._open().__await__()

    async def __aenter__(self) -> Runtime:
        return await self._open()

    async def __aexit__(self, *error: object) -> None:
        if self._runtime is not None:
            await self._runtime.close()

    def __enter__(self) -> Runtime:
        refuse_in_loop("a plain `with hf.open(...)`", "`async with hf.open(...)`")
        from anyio.from_thread import start_blocking_portal  # lazy: only plain code needs a loop in a thread

        portal = self._plain.enter_context(start_blocking_portal("asyncio"))
        try:
            runtime: Runtime = portal.call(self._open)
        except BaseException:
            self._plain.close()
            raise
        runtime._portal = portal
        self._plain.callback(portal.call, runtime.close)
        return runtime

    def __exit__(self, *error: object) -> None:
        self._plain.close()


def open(
    store: str | Store | None = None, app: App | None = None, *, work: bool = True, concurrency: int = 64
) -> Opening:
    """Open a store and work on it; awaitable, and a context manager of both kinds.

    What the app can drive and nobody is driving goes on at once. Without an address `HOLDFAST_STORE` is used, else
    `sqlite:///holdfast.db`.
    """
    return Opening(store, app, work=work, concurrency=concurrency)


def refuse_in_loop(what: str, instead: str) -> None:
    """Refuse what would block the event loop that it is called in, and with it the runs there.

    Raises:
        Misuse: one is running in this thread.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise Misuse(f"{what} is for plain code; in async code use {instead}")


@by_place("hf.run")
def run(
    what: Callable[[OnlyDurable, *Args], Awaitable[R]], /, *args: *Args, key: Key | None = None,
    store: str | None = None, budget: Budget | None = None,
) -> R:  # fmt: skip
    """Run to the end and return the result; with a key, go on with the run that the key belongs to.

    Drives its own tree only. Kill the process at any moment and call it again: what was committed is not repeated.

    Raises:
        RunError: the run failed, or rests where only a person or other code can help.
    """
    refuse_in_loop("hf.run", "`await runtime.run(...)`")
    return asyncio.run(_run_alone(what, args, key, store, budget))


async def _run_alone(
    what: Callable[[OnlyDurable, *Args], Awaitable[R]],
    args: Any,
    key: Key | None,
    store: str | None,
    budget: Budget | None,
) -> R:
    refuse_plain("hf.run", what)
    assert isinstance(what, Durable)
    async with Opening(store, App(what), work=True, concurrency=64, only=set()) as runtime:
        handle = await runtime.start(what, *args, key=key, budget=budget)
        result: R = handle.read(await runtime._wait_or_trouble(handle.id))
        return result
