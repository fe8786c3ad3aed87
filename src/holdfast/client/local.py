"""The client of a store that is open in this process."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Raw

from holdfast.client.held import held_by
from holdfast.client.protocol import (
    CallbackInfo,
    Collected,
    Ending,
    Finding,
    ForkInfo,
    Question,
    Retention,
    RunInfo,
    RunSummary,
    ScheduleInfo,
    WorkerInfo,
)
from holdfast.client.serving import IsDead, Lacking, Serving, could_go_on
from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.budget import DEADLINE, STEPS, checked_deadline, checked_steps
from holdfast.core.checksum import check_chain
from holdfast.core.codec import NULL, decode_any, encode
from holdfast.core.cursor import Cursor
from holdfast.core.entry import Entry, RunFinished, RunStarted, read_entry
from holdfast.core.errors import Conflict, Damaged, InvalidInput, NotFound, StoreRefused, UnknownEntry
from holdfast.core.fold import RunState, fold
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
    AnswerBody,
    Control,
    Raise,
    SignalBody,
    answer_key,
)
from holdfast.core.status import NotDone, Status
from holdfast.core.version import admits
from holdfast.store.fork import RETRY as RETRIED
from holdfast.store.protocol import Store
from holdfast.store.start import Start, checked_labels, new_run
from holdfast.store.value import Created, Existing, Forked, KeyTaken, Lease, NewPost, Page, RunFilter, RunRow
from holdfast.stream.event import Event
from holdfast.stream.feed import feed

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_LOOK_SECONDS: Final = 1.0
_CANDIDATES: Final = 10
_MANY: Final = 1000
_FINISHED: Final = "finished"
_NUMBERS: Final = ("pid", "concurrency")
_DELETED: Final = (
    "What the key stood for is not done again; the result is in the archive, if one was kept. To do it anew, use "
    "another key. If nobody deleted it, `holdfast verify` tells what was lost."
)
_UNREADABLE: Final = ("damaged", "unknown_entry")
_STUCK: Final = ("diverged", "pinned", "outdated", *_UNREADABLE)
"""Rests that nothing in the run's own future ends."""


def as_time(micros: int) -> datetime:
    """Return a stored time as a datetime in UTC; one that no calendar has becomes the epoch."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except (OverflowError, TypeError):
        return _EPOCH


def status_of(row: RunRow) -> Status:
    """Return a run's status: `running` is a row with a lease."""
    if row.damage:
        return Status.QUARANTINED
    return Status.RUNNING if row.owner is not None and not row.status.terminal else row.status


def reason_of(row: RunRow) -> str:
    """Return why a run stands where it does."""
    return f"damaged: {row.damage}" if row.damage else row.reason


class LocalClient:
    """Asks the store; never a worker."""

    def __init__(self, store: Store, *, tenant: str = TENANT) -> None:
        self._store, self._tenant = store, tenant
        self.serves: Callable[[], Mapping[str, str]] | None = None
        """What a worker of this process can drive, by name and code version; a rest that it can end is none."""
        self.is_dead: IsDead = lambda worker: False
        """Says whether a worker is known not to be there any more."""
        self.refusal: Callable[[RunId], StoreRefused | None] = lambda run: None
        """Why a worker of this process cannot drive a run: the store is damaged where it would have to be written."""

    async def _row(self, run: RunId) -> RunRow:
        return self._own(run, await self._store.get(run_id(run)))

    def _own(self, run: RunId, row: RunRow | None) -> RunRow:
        """Return the row if it is this tenant's."""
        if row is not None and row.damage and row.tenant != self._tenant:
            # Whose it is cannot be told any more; that it is damaged can.
            raise Damaged(run=run, seq=None, what=row.damage)
        if row is None or row.tenant != self._tenant:
            raise NotFound(f"run {run}")
        return row

    async def _serving(self, rows: Sequence[RunRow]) -> Serving | None:
        """Return who serves what, if any of these runs waits for somebody to drive it."""
        if not any(could_go_on(row, self._store.now()) for row in rows):
            return None
        serving = Serving(await self._store.workers(), self.is_dead)
        serving.add(self.serves() if self.serves is not None else {})
        return serving

    async def _lacking(self, row: RunRow) -> Lacking | None:
        serving = await self._serving([row])
        return await serving.lacking(self._store, row) if serving is not None else None

    async def info(self, run: RunId) -> RunInfo:
        row = await self._row(run)
        return await self._info(row)

    async def _info(self, row: RunRow) -> RunInfo:
        lacking = await self._lacking(row)
        try:
            started = await self._entry(row, 1)
            last = await self._entry(row, row.last_seq) if not row.damage and row.last_seq > 1 else None
        except (Damaged, UnknownEntry):
            # Of a run that rests or goes on the row still tells; a result that cannot be read must not become none.
            if row.status.terminal:
                raise
            started = last = None
        finished = last if isinstance(last, RunFinished) else None
        begins, forks = await self._kin(row.run)
        error = msgspec.to_builtins(finished.error) if finished and finished.error else None
        known = _summary_fields(row, lacking)
        return RunInfo(
            **known,
            input=await self._value(row, started) if isinstance(started, RunStarted) else None,
            result=await self._value(row, finished) if finished and finished.status is Status.COMPLETED else None,
            error=error,
            waiting_for=known["reason"] or None if lacking or row.status is Status.WAITING else None,
            base=begins.base if begins is not None else None,
            base_seq=begins.at if begins is not None else None,
            forks=forks,
            budget=await self._budget(row, started),
        )

    async def _kin(self, run: RunId) -> tuple[Forked | None, Sequence[ForkInfo]]:
        """Return where a fork begins, and the forks of a run; where damage hides that, the rest is still told."""
        try:
            begins, forks = await self._store.forks([run]), await self._store.forked(run)
        except StoreRefused:
            return None, ()
        return begins.get(run), [
            ForkInfo(id=fork, at=begun.at, retry=begun.word == RETRIED) for fork, begun in forks.items()
        ]

    async def _budget(self, row: RunRow, started: Entry | None) -> dict[str, Any] | None:
        """Return a run's accounts; one without a budget costs no look."""
        if not isinstance(started, RunStarted) or started.budget is None:
            return None
        return {
            channel: as_time(account.total)
            if channel == DEADLINE
            else {"total": account.total, "free": account.free, "reserved": account.reserved, "spent": account.spent}
            for channel, account in (await self._store.budget(row.run)).items()
        } or None

    async def _entry(self, row: RunRow, seq: int) -> Entry | None:
        if row.damage:
            return None
        page = await self._store.read(row.run, Cursor(seq - 1), chunks=False, limit=1)
        if not page.entries:
            raise Damaged(run=row.run, seq=seq, what=f"entry {seq} is missing")
        check_chain(row.run, page.previous, page.entries[:1], seq - 1, page.shares)
        return read_entry(row.run, page.entries[0])

    async def _value(self, row: RunRow, entry: Any) -> Any:
        return entry.value if entry.blob is None else decode_any(await self._blob(row, entry))

    async def _blob(self, row: RunRow, entry: Any) -> bytes:
        from holdfast.client.archive import read_blob  # lazy: most values are small

        return await read_blob(self._store, row, entry.seq, entry.blob.digest)

    async def start(
        self, start: Start, *, worker: WorkerId | None = None, take: Callable[[Lease], None] | None = None
    ) -> RunId:
        """Create a run, or find the one that its key belongs to; give the lease of a new one to `worker` by `take`.

        Raises:
            Conflict: the key was used for something else, or its run was deleted.
        """
        new = new_run(start, tenant=self._tenant, now=self._store.now())
        if worker is not None and take is not None and start.key is None:
            soon = self._store.create_soon(new, worker=worker)
            if soon is not None:
                # Its worker may begin at once, since nobody is told of the run before it is on disk.
                take(soon[0])
                return (await soon[1]).row.run
        match await self._store.create(new, worker=worker if take is not None else None):
            case Created(row=row, lease=lease):
                if lease is not None and take is not None:
                    take(lease)
                return row.run
            case Existing(run=run, row=None):
                raise Conflict(f"key {start.key!r} belongs to run {run}, which was deleted", run=run, hint=_DELETED)
            case Existing(run=run, row=row):
                await self._check_found(row)
                return run
            case KeyTaken(run=run, differs=differs):
                what = " and ".join(differs)
                raise Conflict(
                    f"key {start.key!r} belongs to run {run}, whose {what} differs", run=run, differs=differs
                )

    async def find(self, key: str) -> RunId:
        row = await self._store.find(self._tenant, checked_key(key))
        if row is None:
            raise NotFound(f"key {key!r}")
        await self._check_found(row)
        return row.run

    async def _check_found(self, row: RunRow | None) -> None:
        """Refuse a run that its key knows but that its id does not find."""
        if row is not None and await self._store.get(row.run) is None:
            raise Damaged(run=row.run, seq=None, what=row.damage or "the index that finds it does not know it")

    async def match(self, prefix: str) -> Sequence[RunId]:
        digits = prefix.replace("-", "").lower()
        if not re.fullmatch("[0-9a-f]{8,32}", digits):
            raise InvalidInput(f"{prefix[:60]!r} is not a run id, nor the first eight or more characters of one")
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
        begins: Mapping[RunId, Forked] = {}
        with suppress(StoreRefused):  # damage that hides what is a fork must not hide the runs
            begins = await self._store.forks([row.run for row in rows])
        serving = await self._serving(rows)
        lacking = {row.run: await serving.lacking(self._store, row) for row in rows} if serving is not None else {}
        return [
            RunSummary(
                **_summary_fields(row, lacking.get(row.run)),
                base=begun.base if begun else None,
                base_seq=begun.at if begun else None,
            )
            for row in rows
            for begun in [begins.get(row.run)]
        ]

    async def events(self, run: RunId, *, after: str | int | None = None, follow: bool = True) -> AsyncIterator[Event]:
        await self._row(run)
        async for event in feed(self._store, run, after, follow=follow):
            yield event

    async def value(self, event: Event) -> Any:
        blob: e.BlobRef | None = getattr(event, "blob", None)
        if blob is not None:
            return decode_any(await self._store.blob(self._tenant, blob.digest))
        return getattr(event, "value", None)

    async def wait(self, run: RunId, *, timeout_seconds: float | None = None, or_person: bool = False) -> Ending:
        give_up = asyncio.get_running_loop().time() + timeout_seconds if timeout_seconds is not None else None
        bell = self._store.watch(run_id(run), entries=False)
        page = None
        try:
            while True:
                page = page or await self._store.last(run)
                if page is None:
                    raise NotFound(f"run {run}")
                self._own(run, page.row)
                if self._at_rest(page.row) or (or_person and _waits_for_person(page.row)):
                    return await self._ending(page)
                if (why := await self._stuck(page.row)) is not None:
                    return Ending(status=Status.WAITING, reason=why)
                if or_person and (held := await held_by(self._store, page.row, self._needs_help)) is not None:
                    reason = f"child: {held.name} {held.run}: {reason_of(held)}"
                    return Ending(status=status_of(page.row), reason=reason, held_by=held.run)
                if (refused := self.refusal(run)) is not None:
                    raise refused
                left = _LOOK_SECONDS
                if give_up is not None:
                    left = min(left, give_up - asyncio.get_running_loop().time())
                    if left <= 0:
                        raise TimeoutError(f"run {run} has not ended after {timeout_seconds:g} s; it goes on")
                page = await bell.wait(left)
        finally:
            bell.close()

    def _at_rest(self, row: RunRow) -> bool:
        if row.damage or row.status.terminal:
            return True
        if row.status in (Status.QUARANTINED, Status.EXHAUSTED):
            return not row.is_controlled
        stuck = row.status is Status.WAITING and row.owner is None and row.reason.startswith(_UNREADABLE)
        served = self.serves().get(row.name) if self.serves is not None else None
        return stuck and (served is None or row.due_at is None or not admits(row.refused, served))

    def _needs_help(self, row: RunRow) -> bool:
        return self._at_rest(row) or _waits_for_person(row)

    async def _stuck(self, row: RunRow) -> str | None:
        """Say why a run rests where only other code can help; None where somebody who is there may still drive it."""
        if not row.refused or not could_go_on(row, self._store.now()):
            return None
        lacking = await self._lacking(row)
        if lacking is None or (lacking.unserved and not row.reason.startswith(_STUCK)):
            return None
        return row.reason if row.reason.startswith(_STUCK) else lacking.reason

    async def _ending(self, page: Page) -> Ending:
        row = page.row
        status, reason = status_of(row), reason_of(row)
        if row.damage or not row.status.terminal:
            return Ending(status=status, reason=reason)
        last = _finished(page)
        value = bytes(last.raw) if last.blob is None else await self._blob(row, last)
        error = msgspec.to_builtins(last.error) if last.error is not None else None
        return Ending(status=status, reason=reason or str(status), value=value, error=error)

    async def resolve(
        self, run: RunId, step: str, value: Any | NotDone, *, by: str | None = None, note: str | None = None
    ) -> None:
        await self._row(run)
        state = await self._state(run)
        known = state.open.get(step)
        if known is None or not known.doubted:
            raise NotFound(f"a step in doubt called {step!r} in run {run}")
        if known.left:
            raise Conflict(
                f"step {step!r} was cancelled by the run's own code, which has gone on without it",
                run=run,
                hint="Nothing waits for a word about it.",
            )
        done = not isinstance(value, NotDone)
        word = {
            "step": step,
            "done": done,
            "value": Raw(encode(value, "the value")) if done else NULL,
            "by": by,
            "note": note,
        }
        # One word per doubt: its entry is part of the key, so that a later doubt of the same step can be ended too.
        key = f"resolve/{step}/{known.doubt_seq}"
        posted = await self._store.post(NewPost(run=run, kind="resolve", key=key, body=msgspec.json.encode(word)))
        if posted.outcome != "accepted":
            raise Conflict(
                f"the doubt of step {step!r} was ended before", run=run, hint="`holdfast show RUN` tells by whom."
            )

    async def _state(self, run: RunId) -> RunState:
        state = RunState()
        async for event in feed(self._store, run, None, follow=False):
            if isinstance(event, Entry):
                state = fold(state, event)
        return state

    async def _post(self, run: RunId, kind: str, key: str, body: msgspec.Struct) -> str:
        await self._row(run)
        post = NewPost(run=run, kind=kind, key=key, body=msgspec.json.encode(body), control=kind in CONTROLS)
        return (await self._store.post(post)).outcome

    async def signal(
        self, run: RunId, name: str, value: Any = None, *, key: str | None = None, by: str | None = None
    ) -> bool:
        body = SignalBody(checked_text("a signal's name", name, limits.NAME_BYTES), _json(value, "the value"), by)
        post_key = f"{SIGNAL}/{checked_key(key) if key is not None else uuid4()}"
        return await self._post(run, SIGNAL, post_key, body) != _FINISHED

    async def cancel(self, run: RunId, *, reason: str = "", by: str | None = None) -> bool:
        if (await self._row(run)).status.terminal:
            return False  # its own cancel, if there was one, would make this look like a repeat
        return await self._post(run, CANCEL, CANCEL, Control(by, reason)) != _FINISHED

    async def pause(self, run: RunId, *, reason: str = "", by: str | None = None) -> bool:
        return await self._post(run, PAUSE, f"{PAUSE}/{uuid4()}", Control(by, reason)) != _FINISHED

    async def resume(self, run: RunId, *, by: str | None = None) -> bool:
        return await self._post(run, RESUME, f"{RESUME}/{uuid4()}", Control(by)) != _FINISHED

    async def retry(self, run: RunId, *, by: str | None = None) -> RunId:
        row = await self._row(run)
        if row.status.terminal and not row.damage:
            from holdfast.client.forking import retry_run  # lazy: few ask

            return await retry_run(self._store, row, by=by)
        if row.status is Status.EXHAUSTED:
            hint = f"`holdfast raise {run}` adds to its budget, and it goes on."
            raise Conflict(f"run {run} has used up its budget: {row.reason}", run=run, hint=hint)
        lacking = await self._lacking(row)
        stuck = row.status in (Status.QUARANTINED, Status.EXHAUSTED) or row.reason.startswith(_STUCK)
        if lacking is not None and lacking.unserved and not stuck:
            raise Conflict(
                f"run {run} waits for its code: no worker serves {row.name!r}", run=run,
                hint="Start a worker that does; the run goes on at once.",
            )  # fmt: skip
        if row.owner is not None or not (stuck or lacking):
            raise Conflict(
                f"run {run} is {status_of(row)} and goes on by itself", run=run, hint="Nothing is to be done."
            )
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
        deadline: float | timedelta | datetime | None = None,
        reason: str = "",
        by: str | None = None,
        key: str | None = None,
    ) -> bool:
        if steps is None and deadline is None:
            raise InvalidInput("say what to raise: steps=, deadline= or both")
        row = await self._row(run)
        known = await self._store.budget(row.run)
        asked = {STEPS: steps, DEADLINE: deadline}
        missing = [channel for channel, more in asked.items() if more is not None and channel not in known]
        if missing:
            hint = "Only what a budget limits can be raised: start(..., budget=hf.Budget(...))."
            raise Conflict(f"run {run} has no limit of {' and '.join(missing)}", run=run, hint=hint)
        until = checked_deadline("deadline=", deadline, self._store.now()) if deadline is not None else None
        body = Raise(checked_steps("steps=", steps) if steps is not None else 0, until, by=by, reason=reason)
        post_key = f"{RAISE}/{checked_key(key) if key is not None else uuid4()}"
        return await self._post(run, RAISE, post_key, body) != _FINISHED

    async def questions(self, run: RunId | None = None) -> Sequence[Question]:
        if run is not None:
            return await self._asked(await self._row(run))
        found: list[Question] = []
        for status in (Status.WAITING, Status.RUNNING, Status.PAUSED, Status.EXHAUSTED):
            before: RunId | None = None
            while rows := await self._store.list(RunFilter(status=status, before=before, limit=_MANY)):
                for row in rows:
                    if row.tenant == self._tenant and not row.damage and _may_ask(row):
                        found += await self._asked(row)
                before = rows[-1].run
                if len(rows) < _MANY:
                    break
        return sorted(found, key=lambda question: question.asked_at)

    async def _asked(self, row: RunRow) -> list[Question]:
        questions: dict[str, Question] = {}
        state = RunState()
        async for event in feed(self._store, row.run, None, follow=False):
            if isinstance(event, Entry):
                state = fold(state, event)
            if isinstance(event, e.QuestionAsked):
                questions[event.step] = question_of(row, event, await self._value(row, event))
        return [] if state.finished else [questions[step] for step in state.questions]

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
        run, _, seq = question.partition(".")
        known = [one for one in await self.questions(run_id(run)) if one.id == question] if seq else []
        if not known:
            raise await self._not_asked(run_id(run), question, seq)
        asked = known[0]
        if asked.shown != shown:
            raise Conflict(
                f"question {question} shows something else than what was decided", run=run, hint="Look at it again."
            )
        if asked.expires_at is not None and as_time(self._store.now()) >= asked.expires_at:
            raise _past_its_time(question)
        body = AnswerBody(asked.step, bool(yes), shown, by, note, changed_args(asked, args))
        if await self._post(run_id(run), ANSWER, answer_key(run, int(seq)), body) != "accepted":
            raise Conflict(f"question {question} was answered before", run=run, hint="`holdfast show RUN` tells how.")
        if asked.expires_at is not None and await self._has_expired(asked):
            raise _past_its_time(question)

    async def _not_asked(self, run: RunId, question: str, seq: str) -> Conflict | NotFound:
        """Return why a question cannot be answered: it was, or nobody asked it."""
        asked: e.QuestionAsked | None = None
        async for event in feed(self._store, run, None, follow=False):
            if isinstance(event, e.QuestionAsked) and str(event.seq) == seq:
                asked = event
            if asked is None or not isinstance(event, e.QuestionAnswered) or event.step != asked.step:
                continue
            if event.expired:
                return _past_its_time(question)
            said = f"{'yes' if event.yes else 'no'}, by {event.by or 'a person'}"
            return Conflict(
                f"question {question} was answered before: {said}", run=run, hint="The first answer stands."
            )
        return NotFound(f"an open question {question!r}")

    async def _has_expired(self, asked: Question) -> bool:
        """Say whether a question was decided by nobody, before an answer to it was accepted."""
        async for event in feed(self._store, run_id(asked.run), None, follow=False):
            if isinstance(event, e.QuestionAnswered) and event.step == asked.step:
                return event.expired
        return False

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

    async def workers(self) -> Sequence[WorkerInfo]:
        held = await self._store.list(RunFilter(status=Status.RUNNING, limit=1000))
        return [
            WorkerInfo(
                id=row.worker,
                started_at=as_time(row.started_at),
                beat_at=as_time(row.beat_at) if row.beat_at is not None else None,
                lock_folder=self._store.lock_folder,
                lock=row.lock,
                runs=[run.run for run in held if run.owner == row.worker],
                **_introduction(row.about),
            )
            for row in await self._store.workers()
        ]

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
        deleted = await self._store.delete([self._own(run, row).run])
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
        from holdfast.client.verifying import verify_run  # lazy: few ask

        if run is not None:
            for finding in await verify_run(self._store, await self._row(run)):
                yield finding
            return
        try:
            for what in await self._store.check():
                yield Finding(run=None, seq=None, what=what)
        except StoreRefused as error:
            yield Finding(run=None, seq=None, what=str(error))
            return
        before: RunId | None = None
        while rows := await self._store.list(RunFilter(before=before, limit=100)):
            for row in rows:
                for finding in await verify_run(self._store, row):
                    yield finding
                if seen is not None:
                    seen(row.run)
            if before is not None and rows[-1].run >= before:
                return  # a row that has lost its id has no place in the order, and would come again and again
            before = rows[-1].run


def question_of(row: RunRow, asked: e.QuestionAsked, shown: Any) -> Question:
    """Return a question as people get it, from its entry and what is shown with it."""
    return Question(
        id=f"{row.run}.{asked.seq}", run=row.run, name=row.name, step=asked.step, text=asked.text,
        show=shown["show"], args=shown["args"], shown=asked.shown, asked_at=as_time(asked.at),
        expires_at=as_time(asked.expires_at) if asked.expires_at is not None else None,
    )  # fmt: skip


def changed_args(asked: Question, args: Mapping[str, Any] | None) -> Raw:
    """Return what was to be agreed to, with somebody's changes.

    Raises:
        InvalidInput: that may not be changed.
    """
    if args is not None and (asked.args is None or set(args) - set(asked.args)):
        raise InvalidInput(f"question {asked.id} lets nobody change {', '.join(args)}")
    for name, value in (args or {}).items():
        before = (asked.args or {})[name]
        if before is not None and value is not None and _kind(before) != _kind(value):
            raise InvalidInput(f"question {asked.id}: {name} is {_kind(before)}, such as {before!r}, not {value!r}")
    return NULL if asked.args is None else _json({**asked.args, **(args or {})}, "args=")


def _kind(value: Any) -> str:
    """Return what kind of JSON a value is."""
    kinds = ((bool, "true or false"), ((int, float), "a number"), (str, "a text"), (Mapping, "an object"))
    return next((word for types, word in kinds if isinstance(value, types)), "a list")


def _past_its_time(question: str) -> Conflict:
    run = question.partition(".")[0]
    return Conflict(f"question {question} is past its time, and decided: no", run=run, hint="Nobody waits for it.")


def _json(value: Any, what: str) -> Raw:
    return Raw(encode(value, what))


def _may_ask(row: RunRow) -> bool:
    """Say whether a run may have an open question, as far as its row tells."""
    rests = row.status in (Status.PAUSED, Status.EXHAUSTED)
    return row.owner is not None or rests or row.reason.startswith(("ask", "doubt"))


def _introduction(about: Mapping[str, str]) -> dict[str, Any]:
    """Return what a worker said of itself; what cannot be read was not said."""
    try:
        serves = msgspec.json.decode(about.get("serves", "[]"), type=list[str])
    except msgspec.DecodeError:
        serves = []
    pid, concurrency = (int(text) if text.isdecimal() else None for text in map(about.get, _NUMBERS, ("", "")))
    known = {"host": about.get("host"), "version": about.get("version"), "only": "only" in about}
    return {"serves": serves, "pid": pid, "concurrency": concurrency, **known}


def _finished(page: Page) -> RunFinished:
    """Return the ending of a run whose row says that it has one."""
    row = page.row
    if not page.entries:
        raise Damaged(run=row.run, seq=row.last_seq, what=f"entry {row.last_seq} is missing")
    head = check_chain(row.run, page.previous, page.entries[:1], row.last_seq - 1, page.shares)
    if head != row.head:
        raise Damaged(run=row.run, seq=row.last_seq, what="the row knows another last entry")
    last = read_entry(row.run, page.entries[0])
    if not isinstance(last, RunFinished) or last.status is not row.status:
        raise Damaged(run=row.run, seq=row.last_seq, what=f"the row says {row.status}, the journal {last.type}")
    return last


def _summary_fields(row: RunRow, lacking: Lacking | None) -> dict[str, Any]:
    reason = lacking.reason if lacking is not None and not row.reason.startswith(_STUCK) else reason_of(row)
    return {
        "id": row.run, "name": row.name, "status": status_of(row), "reason": reason, "key": row.key,
        "conversation": row.conversation, "parent": row.parent, "root": row.root or row.run,
        "labels": dict(row.labels), "created_at": as_time(row.created_at), "updated_at": as_time(row.updated_at),
        "attempt": row.attempt, "last_seq": row.last_seq,
    }  # fmt: skip


def _waits_for_person(row: RunRow) -> bool:
    rests = row.status is Status.WAITING and row.owner is None and row.due_at is None
    asks = row.status is Status.WAITING and row.owner is None and row.reason.startswith("ask")
    return (asks or (rests and row.reason.startswith("doubt"))) and row.inbox_seq <= row.seen_seq
