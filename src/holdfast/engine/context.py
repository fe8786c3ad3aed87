"""The verbs of a durable function."""

from asyncio import current_task
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from random import Random
from sys import _getframe
from typing import Any, Literal, NoReturn, TypeVar, TypeVarTuple, Unpack, overload
from uuid import UUID

from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.budget import Budget, checked_budget
from holdfast.core.codec import Codec, canonical, encode
from holdfast.core.derive import derived_random, derived_uuid
from holdfast.core.errors import Diverged, InvalidInput, Misuse
from holdfast.core.ids import checked_text
from holdfast.core.retry import checked_seconds, refuse_moment
from holdfast.core.retry import seconds as seconds_of
from holdfast.core.signal import Decision, Signal, checked_args
from holdfast.core.stepkey import counted_key, encode_name, former_keys, root_branch
from holdfast.engine import witness
from holdfast.engine.branches import AT_ONCE, Branch, Branches
from holdfast.engine.callback import Callback, waits_of
from holdfast.engine.continuing import continued
from holdfast.engine.drive import Drive
from holdfast.engine.effects import StepCall
from holdfast.engine.fanout import branch_keys, check_codes, check_map, check_mapped, close_unbegun, raised_first
from holdfast.engine.forgotten import noted
from holdfast.engine.function import Durable, OnlyDurable, StepCode, look_at
from holdfast.engine.log import SILENT
from holdfast.engine.options import MapOptions, StepOptions, read_options
from holdfast.engine.payload import is_failure, store_value
from holdfast.engine.policy import Policy
from holdfast.engine.refusing import by_place, refuse_plain
from holdfast.engine.step import Step
from holdfast.engine.verb import Child, Verb
from holdfast.journal.replay import CLOSED, FRESH, Answer, Recorded
from holdfast.store.protocol import Transaction

Args = TypeVarTuple("Args")
R = TypeVar("R")
Deps = TypeVar("Deps")
Item = TypeVar("Item")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
_ANY = Codec(Any)
_INT = Codec(int)


class Context:
    """A durable function's way to everything that must hold through a crash.

    Between its verbs the function's code runs again on every resume, so it may compute but not act.
    """

    __slots__ = ("_branches", "_drive", "_loop", "_root", "_task")

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._root = Branch(root_branch(drive.state.generation))
        self._branches = Branches(drive)
        # Named, because asking for the running loop costs a system call on Python 3.11.
        self._loop = drive.loop
        self._task = drive.task = current_task(self._loop)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._drive.lease.row.run

    # An injected parameter comes first, so those overloads stand before the plain ones.
    @overload
    async def step(
        self, function: Callable[[Step[Deps], *Args], Awaitable[R]], /, *args: *Args, **options: Unpack[StepOptions]
    ) -> R: ...
    @overload
    async def step(
        self, function: Callable[[Step[Deps], *Args], R], /, *args: *Args, **options: Unpack[StepOptions]
    ) -> R: ...
    @overload
    async def step(
        self, function: Callable[[Transaction, *Args], R], /, *args: *Args, **options: Unpack[StepOptions]
    ) -> R: ...
    @overload
    async def step(
        self, function: Callable[[*Args], Awaitable[R]], /, *args: *Args, **options: Unpack[StepOptions]
    ) -> R: ...
    @overload
    async def step(self, function: Callable[[*Args], R], /, *args: *Args, **options: Unpack[StepOptions]) -> R: ...
    def step(self, function: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Call `function(*args)` and record its result; a step with a recorded outcome returns it instead.

        Positional arguments are the function's, keywords are Holdfast's (`functools.partial` carries the function's).

        Raises:
            StepError: the function raised, now or when it was first called.
            InDoubt: a `once` step may or may not have happened.
        """
        # Written out, not `noted`: every call counts here.
        calls, last = self._drive.calls, self._drive.calls.last
        if last is not None and last[0].cr_frame is not None:
            calls.keep(last)
        caller = _getframe(1)
        code = self._step(function, args, options)
        calls.last = (code, caller.f_code, caller.f_lasti)
        return code

    async def _step(self, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        branch = self._root
        if branch.busy or self._drive.halted is not None or current_task(self._loop) is not self._task:
            branch = self._enter()
        keywords: dict[str, Any] = {}
        while isinstance(function, partial):
            args, keywords, function = function.args + args, function.keywords | keywords, function.func
        code = look_at(function)
        said: Policy | None = None
        drive = self._drive
        keep = False
        if options:
            step_key, keep, said = read_options(code, branch, options)
        else:
            step_key = branch.key(code.name, None)
        if not code.lasting:
            code.refuse(said)
        if code.aliases and not branch.past:
            # Under way it stays what it was: its idempotency key and its doubts go by the name of its intent.
            step_key = drive.replay.known_as(branch.path, step_key, former_keys(step_key, code.aliases))
        digest = sha256(canonical(code.input_form(args, keywords), f"the input of step {step_key}")).hexdigest()
        if drive.cancel_asked:
            await drive.cancelling.arrive(branch, step_key, cleaning=True)
        answer = FRESH if branch.past else self._ask(branch, step_key, None if keep else digest, "a step")
        branch.busy = True
        try:
            if drive.handing and answer is FRESH:
                await drive.leave()
            if drive.catching.pending and not isinstance(answer, CLOSED):
                await drive.catching.arrive(step_key)
            if drive.late and not isinstance(answer, CLOSED):
                StepCall(drive, code, args, keywords, step_key, digest).cancel_late()
            if answer is FRESH and code.simple and said is None and drive.outbox.clear and drive.purse is None:
                return await self._simple(code, args, keywords, step_key, digest)
            call = StepCall(drive, code, args, keywords, step_key, digest)
            if said is not None:
                call.say(said)
            return await call.answer(answer)
        finally:
            branch.busy = False
            if drive.cancel_asked:
                drive.cancelling.tell_soon()

    async def _simple(
        self, code: StepCode, args: Sequence[Any], keywords: dict[str, Any], step_key: str, digest: str
    ) -> Any:
        """Perform the commonest step by far: `StepCall.attempt` written out, since every call counts here."""
        drive = self._drive
        try:
            value = await code.function(*args, **keywords)
            witness.performed(drive.lease, step_key, 1)
            raw, blob, blobs, back = store_value(code.own_codec, value, step_key, drive.secrets)
        except BaseException as error:
            call = StepCall(drive, code, args, keywords, step_key, digest)
            if not is_failure(error):
                call.cancelled(error, 1)
                raise
            return await call.failed(error, 1, 0)
        entry = e.StepCompleted(step=step_key, digest=digest, raw=raw, blob=blob)
        if drive.outbox.clear:
            await drive.written(drive.journal.add(entry, blobs))
            if drive.handing:
                await drive.leave()
        else:
            await drive.write(entry, blobs=blobs)
        return back

    def _ask(self, branch: Branch, step_key: str, digest: str | None, what: str) -> Answer:
        drive = self._drive
        try:
            answer = drive.replay.ask(branch.path, step_key, digest, what)
        except Diverged as diverged:
            raise drive.refuse(diverged) from None
        branch.past = answer is FRESH
        return answer

    def _enter(self) -> Branch:
        """Return the branch that a verb is called in.

        Raises:
            Misuse: it is called from a task that the context did not start, or while another verb is under way.
        """
        drive = self._drive
        if drive.halted is not None:
            raise drive.halted
        task = current_task(self._loop)
        branch = self._root if task is self._task else self._branches.of.get(task) if task is not None else None
        if branch is None:
            raise Misuse(
                "a context verb was called from another task than the run's own: its order would differ on replay. "
                "Use ctx.gather or ctx.map. (asyncio.wait_for starts one on Python 3.11: use asyncio.timeout.)"
            )
        if branch.busy:
            # Whoever holds the branch waits in this very task: only a step's own code can have come here.
            raise Misuse(
                "a step cannot call the context: call it in the durable function, before or after the step, and give "
                "the step what comes of it"
            )
        return branch

    # Fan-out

    @overload
    async def gather(self, a: Awaitable[T1], /) -> tuple[T1]: ...
    @overload
    async def gather(self, a: Awaitable[T1], b: Awaitable[T2], /) -> tuple[T1, T2]: ...
    @overload
    async def gather(self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /) -> tuple[T1, T2, T3]: ...
    @overload
    async def gather(self, *codes: Awaitable[R]) -> tuple[R, ...]: ...
    @noted
    async def gather(self, *codes: Awaitable[Any]) -> tuple[Any, ...]:
        """Let several go on beside each other, wait for all of them, and return what they returned, in order.

        Each is a branch with a place of its own in the journal: a verb of this context, or an `async` function that
        calls some. The error of the first that failed is raised when all have ended.
        """
        try:
            branch = self._enter()
            check_codes(codes)
            if self._drive.cancel_asked:
                await self._drive.cancelling.arrive(branch, branch.next_set("gather"))
            branch.busy = True
            try:
                return tuple(raised_first(*await self._branches.gather(branch, codes)))
            finally:
                branch.busy = False
        finally:
            close_unbegun(codes)

    @overload
    async def map(
        self, function: Callable[[OnlyDurable, Item], Awaitable[R]], items: Iterable[Item], /, *,
        key: Callable[[Item], str] | None = None, **options: Unpack[MapOptions],
    ) -> list[R]: ...  # fmt: skip
    @overload
    async def map(
        self, function: Callable[[Step[Deps], Item], Awaitable[R]], items: Iterable[Item], /, *,
        key: Callable[[Item], str] | None = None, **options: Unpack[MapOptions],
    ) -> list[R]: ...  # fmt: skip
    @overload
    async def map(
        self, function: Callable[[Step[Deps], Item], R], items: Iterable[Item], /, *,
        key: Callable[[Item], str] | None = None, **options: Unpack[MapOptions],
    ) -> list[R]: ...  # fmt: skip
    @overload
    async def map(
        self, function: Callable[[Transaction, Item], R], items: Iterable[Item], /, *,
        key: Callable[[Item], str] | None = None, **options: Unpack[MapOptions],
    ) -> list[R]: ...  # fmt: skip
    @overload
    async def map(
        self, function: Callable[[Item], Awaitable[R]], items: Iterable[Item], /, *,
        key: Callable[[Item], str] | None = None, **options: Unpack[MapOptions],
    ) -> list[R]: ...  # fmt: skip
    @overload
    async def map(
        self, function: Callable[[Item], R], items: Iterable[Item], /, *,
        key: Callable[[Item], str] | None = None, **options: Unpack[MapOptions],
    ) -> list[R]: ...  # fmt: skip
    @noted
    async def map(
        self,
        function: Any,
        items: Iterable[Any],
        /,
        *,
        key: Callable[[Any], str] | None = None,
        at_once: int = AT_ONCE,
        errors: Literal["raise", "return"] = "raise",
        **options: Any,
    ) -> list[Any]:
        """Call `function` for every item as a step of its own branch, so many at once, and return the results in order.

        A durable function becomes a child run for each item. `key` names each branch by its item, so that items may
        come in another order on a resume. With `errors="return"` what failed stands in its place instead of being
        raised when all have ended.
        """
        branch = self._enter()
        if self._drive.cancel_asked:
            await self._drive.cancelling.arrive(branch, branch.next_set("map"))
        check_map(at_once, errors)
        check_mapped(function, items, options)
        given = list(items)
        verb: Any = self.run if isinstance(function, Durable) else self.step
        keys = branch_keys(given, key) if key is not None else None
        branch.busy = True
        try:
            calls = [partial(verb, function, item, **options) for item in given]
            results, failed = await self._branches.map(branch, calls, keys, at_once)
            if errors == "raise":
                return raised_first(results, failed)
            for place, error in failed.items():
                results[place] = error
            return results
        finally:
            branch.busy = False

    # Waiting

    @noted
    async def sleep(self, duration: float | timedelta) -> None:
        """Rest for a while; no process need be there meanwhile, and the time does not slide when one dies.

        What lies in the past is over at once, so that `ctx.sleep(moment - ctx.now())` holds for every moment.
        """
        refuse_moment("ctx.sleep", duration)
        past = isinstance(duration, int | float | timedelta) and seconds_of(duration) < 0
        seconds = 0.0 if past else checked_seconds("ctx.sleep", duration)
        async with self._verb("a wait", "sleep", seconds) as verb:
            await verb.until("sleep", due_after=seconds)

    @overload
    async def receive(self, signal: Signal[T1], /, *, timeout: None = None) -> T1: ...
    @overload
    async def receive(self, signal: Signal[T1], /, *, timeout: float | timedelta) -> T1 | None: ...
    @overload
    async def receive(
        self, signal: Signal[Any], other: Signal[Any], /, *more: Signal[Any], timeout: None = None
    ) -> tuple[Signal[Any], Any]: ...
    @overload
    async def receive(
        self, signal: Signal[Any], other: Signal[Any], /, *more: Signal[Any], timeout: float | timedelta
    ) -> tuple[Signal[Any], Any] | None: ...
    @noted
    async def receive(self, *signals: Signal[Any], timeout: float | timedelta | None = None) -> Any:
        """Return the value of the next signal of that name; None when none came within `timeout`.

        Of several signals, which one it was and its value. What was sent before the run asked waits for it.
        """
        if not signals or not all(isinstance(signal, Signal) for signal in signals):
            raise InvalidInput(f"ctx.receive wants one or more hf.Signal, not {signals!r}")
        limit = checked_seconds("timeout=", timeout) if timeout is not None else None
        async with self._verb("a wait", "receive", [signal.name for signal in signals]) as verb:
            found = await verb.receive(signals, limit)
        return found if found is None or len(signals) > 1 else found[1]

    @noted
    async def ask(
        self,
        text: str,
        *,
        show: Any = None,
        args: Mapping[str, Any] | None = None,
        expires: float | timedelta | None = None,
        key: str | None = None,
    ) -> Decision:
        """Ask a person, and wait for the decision however long it takes.

        `show` is what they decide about, `args` what they may change before they agree. An answer counts only for
        exactly what was shown. Past `expires` it is decided: no, by nobody.
        """
        checked_text("the question", text, limits.QUESTION_BYTES)
        limit = checked_seconds("expires=", expires) if expires is not None else None
        known = checked_args(args)
        async with self._verb("a question", "ask", {"text": text, "show": show, "args": known}, key=key) as verb:
            return await verb.ask(text, show, known, limit)

    @overload
    async def callback(self, what: Signal[T1], /, *, expires: None = None, key: str | None = None) -> Callback[T1]: ...
    @overload
    async def callback(
        self, what: Signal[T1], /, *, expires: float | timedelta, key: str | None = None
    ) -> Callback[T1 | None]: ...
    @overload
    async def callback(
        self, what: str, /, *, show: Any = None, args: Mapping[str, Any] | None = None,
        expires: float | timedelta | None = None, key: str | None = None,
    ) -> Callback[Decision]: ...  # fmt: skip
    @noted
    async def callback(
        self, what: Signal[Any] | str, /, *, show: Any = None, args: Mapping[str, Any] | None = None,
        expires: float | timedelta | None = None, key: str | None = None,
    ) -> Callback[Any]:  # fmt: skip
        """Open a wait that whoever gets its `token` may answer, once; its `result` waits for that.

        Of a signal it brings a value. Of a text it is a question, as `ask` asks it: anyone may still decide it, and the
        first answer counts. Past `expires` the token is worth nothing.
        """
        limit = checked_seconds("expires=", expires) if expires is not None else None
        if isinstance(what, Signal):
            if show is not None or args is not None:
                raise InvalidInput("show= and args= are for a question; what a signal carries is its type")
            async with self._verb("a wait", "callback", what.name, key=key) as verb:
                due_at = await verb.begin(verb.due(limit), waits_of(what))
        else:
            checked_text("the question", what, limits.QUESTION_BYTES)
            known = checked_args(args)
            form = {"text": what, "show": show, "args": known}
            async with self._verb("a question", "callback", form, key=key) as verb:
                due_at = await verb.put(what, show, known, limit)
        secret = await self._drive.answer(self._drive.store.secret())
        return Callback(self._verb, self._drive, verb, what, due_at, secret)

    # Children

    @noted
    @by_place("ctx.spawn")
    async def spawn(
        self, what: Callable[[OnlyDurable, *Args], Awaitable[R]], /, *args: *Args, key: str | None = None,
        labels: Mapping[str, str] | None = None, budget: Budget | None = None,
    ) -> Child[R]:  # fmt: skip
        """Start another run as a child of this one, which ends with it, and return its handle.

        Of a `budget` its steps are set aside from this run's, if those are counted, and come back when its result was
        asked for. This run's deadline is the child's too.
        """
        refuse_plain("ctx.spawn", what)
        assert isinstance(what, Durable)
        body, codec = what.encode_input(what.bind(args)), what.result
        async with self._verb("a child", what.name, Raw(body), key=key, aliases=what.aliases) as verb:
            child = await verb.spawn(what, body, labels or {}, checked_budget(budget))
        return Child(self._verb, self._drive, child, verb.key, codec)

    @noted
    @by_place("ctx.run")
    async def run(
        self, what: Callable[[OnlyDurable, *Args], Awaitable[R]], /, *args: *Args, key: str | None = None,
        labels: Mapping[str, str] | None = None, budget: Budget | None = None,
    ) -> R:  # fmt: skip
        """Start another run as a child of this one, and return its result.

        Raises:
            RunError: it failed or was cancelled.
        """
        refuse_plain("ctx.run", what)
        child = await self.spawn(what, *args, key=key, labels=labels, budget=budget)
        return await child.result()

    def _verb(
        self, what: str, name: str, form: Any, *, key: str | None = None, aliases: Sequence[str] = (), kept: bool = True
    ) -> Verb:
        """Return the next place of the branch that this is called in, for a verb that waits or creates."""
        branch = self._enter()
        step_key = branch.key(encode_name(name), key)
        if aliases and not branch.past:
            former = former_keys(step_key, [encode_name(alias) for alias in aliases])
            step_key = self._drive.replay.known_as(branch.path, step_key, former)
        return Verb(self, branch, what, step_key, form, kept)

    # Telling and taking

    @noted
    async def emit(self, value: Any, *, name: str = "emit") -> None:
        """Tell whoever watches; once, however often the run is resumed."""
        branch = self._enter()
        step_key = branch.key(encode_name(name), None)
        raw, blob, blobs, _ = store_value(_ANY, value, f"what {step_key} emits", self._drive.secrets)
        if self._drive.cancel_asked:
            await self._drive.cancelling.arrive(branch, step_key)
        if self._ask(branch, step_key, None, "news") is not FRESH:
            return
        branch.busy = True
        try:
            if self._drive.catching.pending:
                await self._drive.catching.arrive(step_key)
            await self._drive.write(e.Emitted(step=step_key, name=name, raw=raw, blob=blob), blobs=blobs)
        finally:
            branch.busy = False

    def now(self) -> datetime:
        """Return the time; the same on every replay. It is recorded with the next entry."""
        branch = self._enter()
        step_key = branch.key("now", None)
        answer = self._ask(branch, step_key, None, "a value")
        if isinstance(answer, Recorded):
            micros = _INT.decode(answer.raw)
        else:
            micros = self._drive.store.now()
            self._drive.journal.note(e.ValueTaken(step=step_key, name="now", raw=Raw(encode(micros))))
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)

    def patched(self, name: str) -> bool:
        """Say whether a change of the code applies to this run: True but for runs that had passed here before it.

        `if ctx.patched("two-mails"): ... else: ...` keeps the old path for old runs. Recorded with the next entry.
        """
        branch = self._enter()
        encoded = encode_name(f"patched {name}")
        step_key = counted_key(branch.path, encoded, branch.counts.get(encoded, 0) + 1)
        if not branch.past and self._drive.replay.peek(branch.path) not in (None, step_key):
            return False
        branch.count(encoded)
        if self._ask(branch, step_key, None, "a value") is FRESH:
            self._drive.journal.note(e.ValueTaken(step=step_key, name="patched", raw=Raw(b"true")))
        return True

    @noted
    async def continue_as(self, *args: Any) -> NoReturn:
        """Go on from the top with other arguments, and forget what was recorded so far; for loops without an end.

        Raises:
            Continued: always; the code is left here.
            InvalidInput: the arguments are not those of the function, or cannot be stored.
        """
        branch = self._enter()
        if branch is not self._root:
            raise Misuse("ctx.continue_as was called in a branch: only the run as a whole goes on anew")
        if self._drive.cancel_asked:
            await self._drive.cancelling.arrive(branch)
        raise continued(self._drive, args)

    @property
    def random(self) -> Random:
        """A generator that gives the same numbers on every replay."""
        branch = self._root if current_task(self._loop) is self._task else self._enter()
        seed = self._seed(branch)
        if branch.random is None or branch.seed != seed:
            branch.random, branch.seed = derived_random(seed, branch.path), seed
        return branch.random

    def _seed(self, branch: Branch) -> str:
        """Return the seed of what comes next in a branch: its own, or that of the run which recorded it."""
        return self._drive.origin.seed(self._drive.replay.next_at(branch.path))

    def uuid(self) -> UUID:
        """Return an id that is the same on every replay, and no other run's."""
        branch = self._enter()
        return derived_uuid(self._seed(branch), counted_key(branch.path, "uuid", branch.count("uuid()")))

    @property
    def log(self) -> Any:
        """A logger bound to the run, silent on replay."""
        replay, task = self._drive.replay, current_task(self._loop)
        branch = self._root if task is self._task else self._branches.of.get(task) if task is not None else None
        # Of branches some may be replayed while others are past it.
        replaying = replay.replaying if branch is None else replay.peek(branch.path) is not None
        return SILENT if replaying else self._drive.log
