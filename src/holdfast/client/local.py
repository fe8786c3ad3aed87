"""The client of a store that is open in this process."""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Raw

from holdfast.client.protocol import (
    CallbackInfo,
    Collected,
    Ending,
    Finding,
    LimitInfo,
    Question,
    Retention,
    RunInfo,
    RunSummary,
    ScheduleInfo,
    SignalInfo,
    WorkerInfo,
)
from holdfast.client.serving import Here
from holdfast.client.standing import as_time, own
from holdfast.client.starting import Begun
from holdfast.client.telling import tell_run, tell_runs
from holdfast.client.waiting import Waiting
from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.budget import DEADLINE, Money, checked_amounts, checked_deadline
from holdfast.core.codec import decode_any, encode
from holdfast.core.cursor import parse_cursor
from holdfast.core.errors import Conflict, ConversationBusy, Damaged, InvalidInput, NotFound
from holdfast.core.ids import TENANT, RunId, WorkerId, checked_key, checked_text, run_id
from holdfast.core.post import (
    ANSWER,
    CANCEL,
    CONTROLS,
    PAUSE,
    RAISE,
    RESUME,
    RETRY,
    SIGNAL,
    STEER,
    AnswerBody,
    Control,
    Raise,
    SignalBody,
    SteerBody,
    answer_key,
    steer_key,
)
from holdfast.core.status import NotDone, Status
from holdfast.store.protocol import Store
from holdfast.store.start import Start, checked_labels, new_run
from holdfast.store.value import Busy, Created, Existing, KeyTaken, Lease, NewPost, RunFilter, RunRow
from holdfast.stream.event import Event
from holdfast.stream.feed import check_cursor, feed

_CANDIDATES: Final = 10
_FINISHED: Final = "finished"
_BECAME: Final = {"accepted": "sent", "duplicate": "before", _FINISHED: "ended"}
"""What becomes of a signal, by what the store says of its post."""
_DELETED: Final = (
    "What the key stood for is not done again; the result is in the archive, if one was kept. To do it anew, use "
    "another key. If nobody deleted it, `holdfast verify` tells what was lost."
)


class LocalClient:
    """Asks the store; never a worker."""

    def __init__(self, store: Store, *, tenant: str = TENANT) -> None:
        self._store, self._tenant = store, tenant
        self.here = Here(store)
        self._waiting = Waiting(store, self.here, tenant)

    async def _row(self, run: RunId) -> RunRow:
        return own(await self._store.get(run_id(run)), run, self._tenant)

    async def info(self, run: RunId) -> RunInfo:
        row = await self._row(run)
        return await tell_run(self._store, row, await self.here.lacking(row))

    async def start(
        self, start: Start, *, worker: WorkerId | None = None, take: Callable[[Lease], None] | None = None
    ) -> RunId:
        """Do as `begin`, and return the run."""
        return (await self.begin(start, worker=worker, take=take)).run

    async def begin(
        self,
        start: Start,
        *,
        worker: WorkerId | None = None,
        take: Callable[[Lease], None] | None = None,
        if_idle: bool = False,
    ) -> Begun:
        """Create a run, or find the one that its key belongs to; give the lease of a new one to `worker` by `take`.

        Raises:
            Conflict: the key was used for something else, or its run was deleted.
            ConversationBusy: another turn of its conversation is open, and it is to be started only `if_idle`.
        """
        new = new_run(start, tenant=self._tenant, now=self._store.now())
        if if_idle:
            new = msgspec.structs.replace(new, if_idle=True)
        if worker is not None and take is not None and start.key is None:
            soon = self._store.create_soon(new, worker=worker)
            if soon is not None:
                # Its worker may begin at once, since nobody is told of the run before it is on disk.
                take(soon[0])
                return Begun(run=(await soon[1]).row.run, created=True)
        match await self._store.create(new, worker=worker if take is not None else None):
            case Created(row=row, lease=lease):
                if lease is not None and take is not None:
                    take(lease)
                return Begun(run=row.run, created=True)
            case Existing(run=run, row=None):
                raise Conflict(f"key {start.key!r} belongs to run {run}, which was deleted", run=run, hint=_DELETED)
            case Existing(run=run, row=row):
                await self._check_found(row)
                return Begun(run=run, created=False)
            case Busy():
                raise ConversationBusy(conversation=start.conversation or "")
            case KeyTaken(run=run, differs=differs):
                what = " and ".join(differs)
                raise Conflict(
                    f"key {start.key!r} belongs to run {run}, whose {what} differs", run=run, differs=differs
                )

    async def find(self, key: str) -> RunId:
        row = await self._store.find(self._tenant, checked_key(key))
        if row is None:
            raise await self._missing(key)
        await self._check_found(row)
        return row.run

    async def _missing(self, key: str) -> NotFound:
        """Return why a key finds no run: it was never used, or its run was deleted."""
        run = await self._store.holder(self._tenant, key)
        if run is None:
            return NotFound(f"key {key!r}")
        error = NotFound(f"run {run}, which was deleted and has key {key!r},")
        error.hint = f"If it was archived: `holdfast show {run} --archive FILE`. Its key stays taken."
        return error

    async def _check_found(self, row: RunRow | None) -> None:
        """Refuse a run that its key knows but that its id does not find."""
        if row is not None and await self._store.get(row.run) is None:
            raise Damaged(run=row.run, seq=None, what=row.damage or "the index that finds it does not know it")

    async def match(self, prefix: str) -> Sequence[RunId]:
        digits = prefix.replace("-", "").lower()
        if not re.fullmatch("[0-9a-f]{8,32}", digits):
            raise InvalidInput(f"{prefix[:60]!r} is not a run id, nor its beginning: its first 13 characters, say")
        rows = await self._store.list(RunFilter(prefix=digits, limit=_CANDIDATES))
        return [row.run for row in rows if row.tenant == self._tenant]

    async def runs(
        self,
        *,
        status: Status | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> Sequence[RunSummary]:
        if not isinstance(limit, int) or not 1 <= limit <= 1000:
            raise InvalidInput(f"a page has 1 to 1,000 runs, not {limit!r}")
        if name is not None:
            checked_text("the name", name, limits.NAME_BYTES)
        labels = checked_labels(labels or {})
        # Any id will do: the run that ended the page before may have been deleted since.
        older = run_id(before) if before is not None else None
        which = RunFilter(status=status, name=name, labels=labels, before=older, limit=limit)
        rows = await self._store.list(which)
        return await tell_runs(self._store, rows, await self.here.serving(rows))

    async def events(self, run: RunId, *, after: str | int | None = None, follow: bool = True) -> AsyncIterator[Event]:
        await self._row(run)
        async for event in feed(self._store, run, after, follow=follow):
            yield event

    async def is_over(self, run: RunId, *, after: str | int | None = None) -> bool:
        row, cursor = await self._row(run), parse_cursor(after, epoch=self._store.epoch)
        check_cursor(cursor, row, str(after))
        return row.status.terminal and not row.damage and cursor.seq >= row.last_seq

    async def value(self, event: Event) -> Any:
        blob: e.BlobRef | None = getattr(event, "blob", None)
        if isinstance(event, e.RunFinished) and event.said is not None:
            from holdfast.client.reading import read_result  # lazy: few ask

            return decode_any(await read_result(self._store, await self._row(RunId(event.run)), event))
        if blob is not None:
            return decode_any(await self._store.blob(self._tenant, blob.digest))
        return getattr(event, "value", None)

    async def wait(self, run: RunId, *, timeout_seconds: float | None = None, or_person: bool = False) -> Ending:
        return await self._waiting.until_rest(run, timeout_seconds=timeout_seconds, or_person=or_person)

    async def resolve(
        self, run: RunId, step: str, value: Any | NotDone, *, by: str | None = None, note: str | None = None
    ) -> None:
        from holdfast.client.doubt import resolve_doubt  # lazy: few ask

        await self._row(run)
        await resolve_doubt(self._store, run, step, value, by=by, note=note)

    async def _post(self, run: RunId, kind: str, key: str, body: msgspec.Struct) -> str:
        await self._row(run)
        post = NewPost(run=run, kind=kind, key=key, body=msgspec.json.encode(body), control=kind in CONTROLS)
        return (await self._store.post(post)).outcome

    async def signal(
        self, run: RunId, name: str, value: Any = None, *, key: str | None = None, by: str | None = None
    ) -> bool:
        return await self.send(run, name, value, key=key, by=by) != "ended"

    async def send(
        self, run: RunId, name: str, value: Any = None, *, key: str | None = None, by: str | None = None
    ) -> str:
        body = SignalBody(checked_text("a signal's name", name, limits.NAME_BYTES), Raw(encode(value, "the value")), by)
        return _BECAME[await self._post(run, SIGNAL, _once(SIGNAL, key), body)]

    async def steer(
        self, run: RunId, text: str, *, key: str | None = None, by: str | None = None, turn: str | None = None
    ) -> str:
        """Do as every client; `turn` is the key of the turn that it becomes if the run ends before it is taken in."""
        said = checked_text("what it is told", text, limits.INLINE_BYTES)
        post_key = steer_key(checked_key(key) if key is not None else str(uuid4()))
        return _BECAME[await self._post(run, STEER, post_key, SteerBody(said, by, turn))]

    async def cancel(self, run: RunId, *, reason: str = "", by: str | None = None) -> bool:
        if (await self._row(run)).status.terminal:
            return False  # its own cancel, if there was one, would make this look like a repeat
        return await self._post(run, CANCEL, CANCEL, Control(by, reason)) != _FINISHED

    async def pause(self, run: RunId, *, reason: str = "", by: str | None = None, key: str | None = None) -> bool:
        return await self._post(run, PAUSE, _once(PAUSE, key), Control(by, reason)) != _FINISHED

    async def resume(self, run: RunId, *, by: str | None = None, key: str | None = None) -> bool:
        return await self._post(run, RESUME, _once(RESUME, key), Control(by)) != _FINISHED

    async def retry(self, run: RunId, *, by: str | None = None) -> RunId:
        from holdfast.client.forking import check_stuck, check_turn, retry_run  # lazy: few ask

        row = await self._row(run)
        if row.status.terminal and not row.damage:
            return await retry_run(self._store, row, by=by)
        check_stuck(row, await self.here.lacking(row))
        await check_turn(self._store, row)
        await self._post(run, RETRY, f"{RETRY}/{uuid4()}", Control(by))
        return row.run

    async def fork(self, run: RunId, at: int | None = None, *, by: str | None = None) -> RunId:
        from holdfast.client.forking import fork_run  # lazy: few ask

        row = await self._row(run)
        if row.damage:
            raise Damaged(run=run, seq=None, what=row.damage)
        return await fork_run(self._store, row, at, by=by)

    async def raise_budget(
        self,
        run: RunId,
        *,
        steps: int | None = None,
        calls: int | None = None,
        tokens: int | None = None,
        usd: Money | None = None,
        deadline: float | timedelta | datetime | None = None,
        reason: str = "",
        by: str | None = None,
        key: str | None = None,
    ) -> bool:
        more = checked_amounts(steps=steps, calls=calls, tokens=tokens, usd=usd)
        if not more and deadline is None:
            raise InvalidInput("say what to raise: steps=, calls=, tokens=, usd= or deadline=")
        row = await self._row(run)
        known = await self._store.budget(row.run)
        asked = [*more, *([DEADLINE] if deadline is not None else [])]
        missing = [channel for channel in asked if channel not in known]
        if missing:
            hint = "Only what a budget limits can be raised: start(..., budget=hf.Budget(...))."
            raise Conflict(f"run {run} has no limit of {' and '.join(missing)}", run=run, hint=hint)
        until = checked_deadline("deadline=", deadline, self._store.now()) if deadline is not None else None
        body = Raise(**more, deadline=until, by=by, reason=reason)
        return await self._post(run, RAISE, _once(RAISE, key), body) != _FINISHED

    async def questions(self, run: RunId | None = None) -> Sequence[Question]:
        from holdfast.client.question import asked_by, open_questions  # lazy: few ask

        if run is not None:
            return await asked_by(self._store, await self._row(run))
        return await open_questions(self._store, self._tenant)

    async def answer(
        self,
        question: str,
        yes: bool,
        *,
        shown: str,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        note: str | None = None,
    ) -> None:
        from holdfast.client import question as q  # lazy: few ask

        decided = q.checked_decision(question, yes)
        run, _, seq = question.partition(".")
        if not seq:
            raise await q.not_asked(self._store, question)
        asked = await q.question_at(self._store, await self._row(run_id(run)), question, shown)
        body = AnswerBody(asked.step, decided, shown, by, note, q.changed_args(asked, args))
        if await self._post(run_id(run), ANSWER, answer_key(run, int(seq)), body) != "accepted":
            raise Conflict(f"question {question} was answered before", run=run, hint="`holdfast show RUN` tells how.")
        if await q.has_expired(self._store, asked):
            raise q.past_its_time(question)

    async def callback(self, token: str) -> CallbackInfo:
        from holdfast.client.callback import find_callback  # lazy: few ask

        return (await find_callback(self._store, self._tenant, token)).info

    async def answer_token(
        self,
        token: str,
        answer: Any,
        *,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        note: str | None = None,
    ) -> None:
        from holdfast.client.callback import find_callback  # lazy: few ask

        found = await find_callback(self._store, self._tenant, token)
        while not await found.give(self._store, answer, args, by, note):
            # Somebody else was quicker: what was answered, or ended, is looked at.
            found = await find_callback(self._store, self._tenant, token)

    async def signals(self, run: RunId) -> Sequence[SignalInfo]:
        from holdfast.client.inbox import list_signals  # lazy: few ask

        return await list_signals(self._store, await self._row(run))

    async def workers(self) -> Sequence[WorkerInfo]:
        from holdfast.client.worker import list_workers  # lazy: few ask

        return await list_workers(self._store, self.here.is_held)

    async def limits(self) -> Sequence[LimitInfo]:
        from holdfast.client.worker import list_limits  # lazy: few ask

        return await list_limits(self._store)

    async def schedules(self) -> Sequence[ScheduleInfo]:
        from holdfast.client.schedule import list_schedules  # lazy: few ask

        return await list_schedules(self._store, as_time(self._store.now()))

    async def export(self, run: RunId) -> AsyncIterator[bytes]:
        from holdfast.client.archive import export_run  # lazy: few ask

        await self._row(run)
        async for line in export_run(self._store, run):
            yield line

    async def delete(self, run: RunId) -> bool:
        row = await self._store.get(run_id(run))
        if row is None or (row.tenant != self._tenant and not row.damage):
            return False
        deleted = await self._store.delete([own(row, run, self._tenant).run])
        if run in deleted.kept:
            from holdfast.client.retention import refusal  # lazy: few ask

            raise refusal(row, deleted.kept[run])
        return run in deleted.runs

    async def gc(
        self,
        policy: Retention,
        *,
        archive: str | None = None,
        dry_run: bool = False,
        tell: Callable[[Collected], None] | None = None,
    ) -> Collected:
        from holdfast.client.retention import Cleaning  # lazy: few ask

        return await Cleaning(self._store, self._tenant, policy, tell=tell).run(archive=archive, dry_run=dry_run)

    async def describe(self) -> Mapping[str, str]:
        return await self._store.describe()

    async def raise_epoch(self) -> int:
        return await self._store.raise_epoch()

    async def verify(
        self, run: RunId | None = None, *, seen: Callable[[RunId], None] | None = None
    ) -> AsyncIterator[Finding]:
        from holdfast.client.verifying import verify_run, verify_store  # lazy: few ask

        if run is None:
            async for finding in verify_store(self._store, seen=seen):
                yield finding
            return
        for finding in await verify_run(self._store, await self._row(run)):
            yield finding


def _once(kind: str, key: str | None) -> str:
    """Return the key of a post that is sent once under a caller's key, or for itself."""
    return f"{kind}/{checked_key(key) if key is not None else uuid4()}"
