"""The verbs of a durable function."""

from asyncio import current_task
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, Literal, NoReturn, TypedDict, TypeVar, TypeVarTuple, Unpack, overload
from uuid import UUID

from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.codec import Codec, canonical, encode
from holdfast.core.derive import derived_random, derived_uuid
from holdfast.core.errors import Diverged, InvalidInput, Misuse
from holdfast.core.limit import Limit
from holdfast.core.retry import Retry
from holdfast.core.status import Effect
from holdfast.core.stepkey import counted_key, encode_name, explicit_key, root_branch
from holdfast.engine.drive import Drive
from holdfast.engine.effects import StepCall
from holdfast.engine.function import Policy, StepCode, declared, look_at
from holdfast.engine.log import SILENT
from holdfast.engine.payload import is_failure, store_value
from holdfast.engine.step import Step
from holdfast.journal.replay import FRESH, Answer, Recorded
from holdfast.store.protocol import Transaction

Args = TypeVarTuple("Args")
R = TypeVar("R")
Deps = TypeVar("Deps")
_ANY = Codec(Any)
_INT = Codec(int)


class StepOptions(TypedDict, total=False):
    """The keywords of `ctx.step`; each takes precedence over what the function declared."""

    key: str | None
    name: str | None
    effect: Effect | Literal["repeat", "keyed", "once"] | None
    verify: Callable[..., Any] | None
    in_doubt: Literal["raise", "wait"] | None
    retry: Retry | None
    timeout: float | timedelta | None
    returns: Any
    not_performed: tuple[type[BaseException], ...] | None
    limit: Limit | None


class Context:
    """A durable function's way to everything that must hold through a crash.

    Between its verbs the function's code runs again on every resume, so it may compute but not act.
    """

    __slots__ = ("_branch", "_busy", "_counts", "_drive", "_loop", "_past", "_random", "_task")

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._branch = root_branch(drive.state.generation)
        self._counts: dict[str, int] = {}
        self._busy = False
        self._past = False
        """True once the branch's last record was passed: everything after it is fresh."""
        # Named, because asking for the running loop costs a system call on Python 3.11.
        self._loop = drive.loop
        self._task = current_task(self._loop)
        self._random: Random | None = None

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
    async def step(self, function: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Call `function(*args)` and record its result; a step with a recorded outcome returns it instead.

        Positional arguments are the function's, keywords are Holdfast's (`functools.partial` carries the function's).

        Raises:
            StepError: the function raised, now or when it was first called.
            InDoubt: a `once` step may or may not have happened.
        """
        if self._busy or self._drive.halted is not None or current_task(self._loop) is not self._task:
            self._refuse()
        keywords: dict[str, Any] = {}
        while isinstance(function, partial):
            args, keywords, function = function.args + args, function.keywords | keywords, function.func
        code = look_at(function)
        said: Policy | None = None
        if options:
            key, name = options.pop("key", None), options.pop("name", None)
            step_key = self._key(code.name if name is None else encode_name(name), key)
            if options:
                # Checked before the journal is asked: what is refused here has no place there, on replay neither.
                said = declared(**options)
        else:
            step_key = self._key(code.name, None)
        drive = self._drive
        digest = sha256(canonical(code.input_form(args, keywords), f"the input of step {step_key}")).hexdigest()
        answer = FRESH if self._past else self._ask(step_key, digest)
        self._busy = True
        try:
            if drive.cancelled_late:
                StepCall(drive, code, args, keywords, step_key, digest).cancel_late()
            if answer is FRESH and code.simple and said is None:
                return await self._simple(code, args, keywords, step_key, digest)
            call = StepCall(drive, code, args, keywords, step_key, digest)
            if said is not None:
                call.say(said)
            return await call.answer(answer)
        finally:
            self._busy = False

    async def _simple(
        self, code: StepCode, args: Sequence[Any], keywords: dict[str, Any], step_key: str, digest: str
    ) -> Any:
        """Perform the commonest step by far: `StepCall.attempt` written out, since every call counts here."""
        drive = self._drive
        try:
            value = await code.function(*args, **keywords)
            raw, blob, blobs, back = store_value(code.own_codec, value, step_key, drive.secrets)
        except BaseException as error:
            call = StepCall(drive, code, args, keywords, step_key, digest)
            if not is_failure(error):
                call.cancelled(error, 1)
                raise
            return await call.failed(error, 1, 0)
        entry = e.StepCompleted(step=step_key, digest=digest, raw=raw, blob=blob)
        if not await drive.written(drive.journal.add(entry, blobs)):
            await drive.write(entry, blobs=blobs)
        if drive.handing:
            drive.hand_over()
        return back

    def _key(self, name: str, key: str | None) -> str:
        if key is not None:
            step_key = explicit_key(self._branch, key)
            if step_key in self._counts:
                raise InvalidInput(f"step key {key!r} was used before in this run")
            self._counts[step_key] = 1
            return step_key
        if not name:
            raise InvalidInput("a lambda has no name that stays: give the step a key=")
        nth = self._counts[name] = self._counts.get(name, 0) + 1
        return counted_key(self._branch, name, nth)

    def _ask(self, step_key: str, digest: str | None) -> Answer:
        try:
            answer = self._drive.replay.ask(self._branch, step_key, digest)
            self._past = answer is FRESH
            return answer
        except Diverged as diverged:
            raise self._drive.refuse(diverged) from None

    def _refuse(self) -> NoReturn:
        if self._drive.halted is not None:
            raise self._drive.halted
        if current_task(self._loop) is not self._task:
            raise Misuse(
                "a context verb was called from another task than the run's own: its order would differ on replay. "
                "(asyncio.wait_for starts one on Python 3.11: use asyncio.timeout.)"
            )
        raise Misuse("a step is still under way: steps of one branch may not overlap")

    def _enter(self) -> None:
        if self._busy or self._drive.halted is not None or current_task(self._loop) is not self._task:
            self._refuse()

    async def emit(self, value: Any, *, name: str = "emit") -> None:
        """Tell whoever watches; once, however often the run is resumed."""
        self._enter()
        step_key = self._key(encode_name(name), None)
        raw, blob, blobs, _ = store_value(_ANY, value, f"what {step_key} emits", self._drive.secrets)
        if self._ask(step_key, None) is not FRESH:
            return
        self._busy = True
        try:
            await self._drive.write(e.Emitted(step=step_key, name=name, raw=raw, blob=blob), blobs=blobs)
        finally:
            self._busy = False

    def now(self) -> datetime:
        """Return the time; the same on every replay. It is recorded with the next entry."""
        self._enter()
        step_key = self._key("now", None)
        answer = self._ask(step_key, None)
        if isinstance(answer, Recorded):
            micros = _INT.decode(answer.raw)
        else:
            micros = self._drive.store.now()
            self._drive.journal.note(e.ValueTaken(step=step_key, name="now", raw=Raw(encode(micros))))
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)

    @property
    def random(self) -> Random:
        """A generator that gives the same numbers on every replay."""
        if self._random is None:
            self._random = derived_random(self._drive.state.seed, self._branch)
        return self._random

    def uuid(self) -> UUID:
        """Return an id that is the same on every replay, and no other run's."""
        self._enter()
        nth = self._counts["uuid()"] = self._counts.get("uuid()", 0) + 1
        return derived_uuid(self._drive.state.seed, counted_key(self._branch, "uuid", nth))

    @property
    def log(self) -> Any:
        """A logger bound to the run, silent on replay."""
        return SILENT if self._drive.replay.replaying else self._drive.log
