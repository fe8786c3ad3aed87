"""A verb that waits or creates: it takes a place in its branch, begins with an entry and ends with another."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.budget import DEADLINE, SHARED, Budget, settlement
from holdfast.core.codec import Codec, canonical, decode_any, encode
from holdfast.core.errors import Damaged, Diverged, InvalidValue, NotFound, RunError
from holdfast.core.ids import RunId
from holdfast.core.post import SETTLED, SIGNAL, AnswerBody, Settlement, SignalBody
from holdfast.core.signal import Decision, Signal
from holdfast.core.status import Effect, Status
from holdfast.engine.adoption import version_of
from holdfast.engine.branches import Branch
from holdfast.engine.drive import Drive
from holdfast.engine.family import cancel_post
from holdfast.engine.forgotten import noted
from holdfast.engine.function import Durable
from holdfast.engine.inbox import answers
from holdfast.engine.payload import load_value, store_value
from holdfast.engine.reopening import take_up
from holdfast.journal import replay as r
from holdfast.store.start import Start, new_run
from holdfast.store.value import NewPost, Post

if TYPE_CHECKING:
    from holdfast.engine.context import Context

R_co = TypeVar("R_co", covariant=True)
_ARGS: Final = Codec(dict[str, Any])
_ANY: Final = Codec(Any)
_UNDER_WAY: Final = (*r.CLOSED, r.Spawned, r.Waiting, r.Asked)
"""Answers upon which nothing is begun."""


class Verb:
    """One place in a branch, held while it is used in `async with`.

    One that is not `kept` is only recorded when the run's own code cancels it; otherwise it takes no place.
    """

    def __init__(self, context: "Context", branch: Branch, what: str, key: str, form: Any, kept: bool) -> None:
        self._context, self._branch, self._drive, self._what = context, branch, context._drive, what
        self.key, self._kept = key, kept
        self.digest = sha256(canonical(form, f"the input of {self.key}")).hexdigest()
        self._answer: r.Answer = r.FRESH
        self.lenient = False
        """True where what is recorded counts, whatever the code would ask for now."""

    @property
    def is_recorded(self) -> bool:
        """True when this is the next place that the journal has in its branch."""
        return self._drive.replay.peek(self._branch.path) == self.key

    async def __aenter__(self) -> "Verb":
        context, branch, drive = self._context, self._branch, self._drive
        if drive.cancel_asked:
            await drive.cancelling.arrive(branch, self.key)
        if not branch.past and (self._kept or self.is_recorded):
            self._answer = context._ask(branch, self.key, None if self.lenient else self.digest, self._what)
        branch.busy = True
        try:
            await self._enter()
        except BaseException:
            branch.busy = False
            raise
        return self

    async def _enter(self) -> None:
        drive = self._drive
        if drive.handing and self._answer is r.FRESH:
            await drive.leave()
        if drive.catching.pending and self._kept and not isinstance(self._answer, _UNDER_WAY):
            await drive.catching.arrive(self.key)
        if drive.late and not isinstance(self._answer, r.CLOSED) and drive.is_late():
            self._record_cancel()
            raise asyncio.CancelledError
        if isinstance(self._answer, r.Cancelled):
            # The code cancelled this wait, and will again; or it was told there that the run shall end.
            await drive.cancelling.left_again(self._answer)

    async def __aexit__(self, *error: object) -> None:
        self._branch.busy = False
        if self._drive.cancel_asked:
            self._drive.cancelling.tell_soon()

    def _record_cancel(self) -> None:
        info = e.ErrorInfo(type="CancelledError", message="cancelled by the run's own code")
        self._drive.write_soon(e.StepFailed(step=self.key, digest=self.digest, error=info, cancelled=True))

    async def wait(
        self, kind: str, due_at: int | None, takes: Callable[[Post], bool] | None, step: str | None = None, **rest: Any
    ) -> Any:
        """Wait, and record it if the run's own code cancels that."""
        try:
            return await self._drive.waits.until(kind, step or self.key, due_at=due_at, takes=takes, **rest)
        except asyncio.CancelledError:
            if not self._drive.unwinding:
                self._record_cancel()
            raise

    def due(self, after_seconds: float | None) -> int | None:
        """Return when something ends that ends after so long."""
        return None if after_seconds is None else self._drive.store.now() + int(after_seconds * 1e6)

    async def begin(self, due_at: int | None, waits: Sequence[str]) -> int | None:
        """Write that the wait begins, unless it had; return when it ends by itself."""
        if isinstance(self._answer, r.Waiting):
            return self._answer.due_at
        if isinstance(self._answer, r.CLOSED):
            return None
        entry = e.StepStarted(step=self.key, digest=self.digest, effect=Effect.REPEAT, due_at=due_at, waits=list(waits))
        await self._drive.write(entry)
        return due_at

    # Times and signals

    async def until(self, kind: str, *, due_after: float) -> None:
        """Wait for a time."""
        if isinstance(self._answer, r.Recorded):
            return
        due_at = await self.begin(self.due(due_after), [kind])
        await self.wait(kind, due_at, None)
        await self._drive.write(e.StepCompleted(step=self.key, digest=self.digest))

    async def receive(self, signals: Sequence[Signal[Any]], limit: float | None) -> tuple[Signal[Any], Any] | None:
        """Wait for one of several signals."""
        drive = self._drive
        by_name = {signal.name: signal for signal in signals}
        if isinstance(self._answer, r.Recorded):
            return None
        if isinstance(self._answer, r.Received):
            signal = by_name[self._answer.name]
            return signal, await self.received(signal, self._answer)
        due_at = await self.begin(self.due(limit), [f"signal {name}" for name in by_name])

        def takes(post: Post) -> bool:
            return post.kind == SIGNAL and msgspec.json.decode(post.body, type=SignalBody).name in by_name

        while True:
            names = ", ".join(by_name)
            post = await self.wait("signal", due_at, takes, name=names, detail=names)
            if post is None:
                await drive.write(e.StepCompleted(step=self.key, digest=self.digest))
                return None
            body = msgspec.json.decode(post.body, type=SignalBody)
            signal = by_name[body.name]
            try:
                value = signal.codec.decode(body.value, f"signal {signal.name}")
            except InvalidValue as error:
                # A slip of the sender's must not end the run: it is passed over.
                drive.log.warning("a signal was not what it should be", signal=signal.name, error=str(error))
                await drive.write(consumed=(post.seq,))
                continue
            entry = e.SignalReceived(step=self.key, name=signal.name, post=post.seq, raw=body.value, by=body.by)
            await drive.write(entry, consumed=(post.seq,))
            return signal, value

    async def received(self, signal: Signal[Any], known: r.Received | e.SignalReceived) -> Any:
        """Return the value of a signal that was received."""
        drive, what = self._drive, f"signal {signal.name}"
        try:
            return await drive.answer(
                load_value(drive.store, drive.lease.row.tenant, signal.codec, known.raw, known.blob, what)
            )
        except InvalidValue as error:
            asked = f"it as {signal.type!r}, which the signal that was received is not"
            raise drive.refuse(Diverged(seq=0, recorded=f"{self.key!r}", asked=asked)) from error

    # Questions

    async def ask(self, text: str, show: Any, args: dict[str, Any] | None, limit: float | None) -> Decision:
        """Ask a person and wait for the decision."""
        if isinstance(self._answer, r.Decided):
            return decision_of(self._answer.entry)
        due_at = await self.put(text, show, args, limit)
        return decision_of(await self.decided(self.key, self.digest, due_at, text))

    async def decided(self, step: str, shown: str, due_at: int | None, text: str) -> e.QuestionAnswered:
        """Wait for the answer to what was asked in a step, and record it."""
        drive = self._drive

        def takes(post: Post) -> bool:
            return answers(post, step, shown)

        while (post := await self.wait("ask", due_at, takes, step=step, detail=text[:200])) is None:
            known = await self.closed_beside(step)
            if isinstance(known, e.QuestionAnswered):
                return known
            expired = e.QuestionAnswered(step=step, yes=False, shown=shown, expired=True)
            # An answer that came between the look and this entry counts: whoever gave it was told so.
            drive.closed[step] = expired
            if await drive.write_if_heard(expired):
                return expired
            del drive.closed[step]
        body = msgspec.json.decode(post.body, type=AnswerBody)
        entry = drive.closed[step] = e.QuestionAnswered(
            step=step, yes=body.yes, shown=shown, by=body.by, note=body.note, raw=body.args
        )
        await drive.write(entry, consumed=(post.seq,))
        drive.waits.settle(step)
        return entry

    async def closed_beside(self, step: str) -> Any:
        """Return how another branch closed what this one waited for too, once that is on disk."""
        if step in self._drive.closed:
            await self._drive.write()
        return self._drive.closed.get(step)

    async def put(self, text: str, show: Any, args: dict[str, Any] | None, limit: float | None) -> int | None:
        """Ask a person, unless it was asked; return when it is decided by itself."""
        drive = self._drive
        if isinstance(self._answer, r.Asked):
            return self._answer.expires_at
        if isinstance(self._answer, r.Decided):
            return None
        due_at = self.due(limit)
        # For people's eyes: what it is made of in the code does not matter, only what it looks like.
        value = decode_any(encode({"show": show, "args": args}, f"what {self.key} shows"))
        raw, blob, blobs, _ = store_value(_ANY, value, f"what {self.key} shows", drive.secrets)
        entry = e.QuestionAsked(step=self.key, text=text, shown=self.digest, expires_at=due_at, raw=raw, blob=blob)
        await drive.write(entry, blobs=blobs)
        return due_at

    # Children

    async def spawn(
        self, what: Durable[Any, ...], body: bytes, labels: Mapping[str, str], budget: Budget | None
    ) -> RunId:
        """Create a child in the commit that records it."""
        match self._answer:
            case r.Spawned(child=child):
                known = RunId(child)
            case r.Settled(entry=entry):
                known = RunId(entry.child)
            case r.Anew(child=str() as child):
                spawned = e.ChildSpawned(step=self.key, child=child, name=what.name, digest=self.digest)
                known = await take_up(self._drive, spawned)
            case _:
                known = await self._create(what, body, labels, budget)
        self._drive.on_spawn(what, known)
        return known

    def spawned(self) -> RunId | None:
        """Return the child that is recorded here, for whoever has not its code; None where none is."""
        match self._answer:
            case r.Spawned(child=child):
                return RunId(child)
            case r.Settled(entry=entry):
                return RunId(entry.child)
            case _:
                return None

    async def _create(
        self, what: Durable[Any, ...], body: bytes, labels: Mapping[str, str], budget: Budget | None
    ) -> RunId:
        drive = self._drive
        row = drive.lease.row
        code, place = version_of(drive, what)
        budget = budget or what.budget
        grant = await self._reserve(budget)
        start = Start(
            name=what.name, input=drive.secrets.redact(body), labels=drive.secrets.redact_labels(labels),
            parent=row.run, root=row.root or row.run, code=code, place=place, budget=budget,
            pin=(row.pin or what.pin) and bool(code), grant=grant or {},
            deadline_at=drive.purse.deadline if drive.purse is not None else None,
        )  # fmt: skip
        new = new_run(start, tenant=row.tenant, now=drive.store.now())
        entry = e.ChildSpawned(step=self.key, child=new.row.run, name=what.name, digest=self.digest, grant=grant)
        await drive.write(entry, children=(new,), **drive.paid(entry))
        drive.children[self.key] = new.row.run
        return new.row.run

    async def _reserve(self, budget: Budget | None) -> dict[str, int] | None:
        """Take what a child is given of this run's budget, where it is counted; return it.

        Of model calls, tokens and money it is given half of what is free where nobody said how much: what it spends is
        its parent's, and its brothers shall have some too.
        """
        purse = self._drive.purse
        if purse is None:
            return None
        given = purse.counted({each: all_ for each, all_ in _amounts(budget).items() if each != DEADLINE})
        try:
            await purse.hold(self._drive, self.key, given)
        except asyncio.CancelledError:
            if not self._drive.unwinding:
                self._record_cancel()
            raise
        shares = {each: max(0, purse.free(each)) // 2 for each in purse.counted(dict.fromkeys(SHARED, 0))}
        shares = {each: share for each, share in shares.items() if each not in given}
        await purse.hold(self._drive, self.key, shares)
        return {**given, **shares} or None

    async def settled(self, step: str, child: RunId) -> e.ChildSettled:
        """Wait until a child has ended, and record how."""
        drive = self._drive

        def takes(post: Post) -> bool:
            return post.kind == SETTLED and post.key == f"{SETTLED}/{child}"

        post = await self.wait("child", None, takes, step=step, name=child, detail=child)
        if post is None:
            return drive.settled[step]  # another branch waited for it too, and took it
        body = msgspec.json.decode(post.body, type=Settlement)
        grant = drive.purse.grants.get(step) if drive.purse is not None else None
        entry = e.ChildSettled(
            step=step, child=child, status=body.status, error=body.error, raw=body.value, blob=body.blob,
            spent=settlement(grant, body.spent, body.over) if grant is not None and body.spent is not None else None,
            unknown=[channel for channel in body.unknown if grant is not None and channel in grant],
        )  # fmt: skip
        await drive.write(entry, consumed=(post.seq,), **drive.paid(entry))
        drive.settled[step] = entry
        drive.children.pop(step, None)
        drive.waits.settle(step)
        drive.waits.wake()
        return entry


class Child(Generic[R_co]):
    """A handle to a child run."""

    def __init__(self, verb: Callable[..., Verb], drive: Drive, child: RunId, step: str, codec: Codec) -> None:
        self._verb, self._drive, self.id, self._step, self._codec = verb, drive, child, step, codec

    def __repr__(self) -> str:
        return f"<child {self.id}>"

    @noted
    async def result(self) -> R_co:
        """Return what the child returned, once it has ended.

        Raises:
            RunError: it failed or was cancelled.
        """
        verb = self._verb("a wait", "result", self._step, kept=False)
        settled = self._settlement()
        if settled is None or verb.is_recorded:
            async with verb:
                settled = await verb.settled(self._step, self.id)
        if settled.status is not Status.COMPLETED:
            error = msgspec.to_builtins(settled.error) if settled.error is not None else None
            reason = settled.error.message if settled.error is not None else str(settled.status)
            raise RunError(run=self.id, status=settled.status, reason=reason, error=error)
        return await self._load(settled)

    def _settlement(self) -> e.ChildSettled | None:
        return self._drive.replay.settlement(self._step) or self._drive.settled.get(self._step)

    async def _load(self, settled: e.ChildSettled) -> R_co:
        drive, what = self._drive, f"the result of run {self.id}"
        tenant = drive.lease.row.tenant
        try:
            value: R_co = await drive.answer(
                load_value(drive.store, tenant, self._codec, settled.raw, settled.blob, what)
            )
        except (Damaged, NotFound) as error:
            raise drive.refuse(Damaged(run=drive.lease.row.run, seq=None, what=f"{what}: {error}")) from error
        except InvalidValue as error:
            asked = f"it as {self._codec.annotation!r}, which its child's result is not"
            raise drive.refuse(Diverged(seq=settled.seq, recorded=f"{self._step!r}", asked=asked)) from error
        return value

    @noted
    async def signal(self, signal: Signal[Any], value: Any = None) -> None:
        """Send the child a signal; once, however often this run is resumed."""
        body, _ = signal.codec.round_trip(value, f"signal {signal.name}")
        body = self._drive.secrets.redact(body)
        post = NewPost(
            run=self.id, kind=SIGNAL, key=f"{self._drive.lease.row.run}/{{}}",
            body=msgspec.json.encode(SignalBody(signal.name, Raw(body))),
        )  # fmt: skip
        await self._send("signal", post, [signal.name, Raw(body)])

    @noted
    async def cancel(self, reason: str = "") -> None:
        """Ask for the child's end; its `result` tells when it has come."""
        await self._send("cancel", cancel_post(self.id, reason), [self.id, reason])

    async def _send(self, name: str, post: NewPost, form: Any) -> None:
        async with self._verb("a step", name, form) as verb:
            if isinstance(verb._answer, r.Recorded):
                return
            sent = msgspec.structs.replace(post, key=post.key.format(verb.key))
            await self._drive.write(e.StepCompleted(step=verb.key, digest=verb.digest), posts=(sent,))


def _amounts(budget: Budget | None) -> dict[str, int]:
    return budget.granted(0) if budget is not None else {}


def decision_of(entry: e.QuestionAnswered) -> Decision:
    """Return the decision that an entry holds."""
    args = _ARGS.decode(entry.raw) if bytes(entry.raw) != b"null" else None
    return Decision(yes=entry.yes, by=entry.by, note=entry.note, args=args, at=entry.at, expired=entry.expired)
