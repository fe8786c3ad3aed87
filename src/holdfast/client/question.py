"""The questions that runs ask people, and what may be answered to them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from holdfast.client.protocol import Question
from holdfast.client.reading import read_value
from holdfast.client.standing import as_time
from holdfast.core import entry as e
from holdfast.core.codec import NULL, encode
from holdfast.core.errors import Conflict, InvalidInput, NotFound
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import RunId, run_id
from holdfast.core.signal import checked_args
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow
from holdfast.stream.feed import feed

_MANY: Final = 1000


async def open_questions(store: Store, tenant: str) -> Sequence[Question]:
    """Return what all runs of a tenant ask, the oldest first."""
    found: list[Question] = []
    for status in (Status.WAITING, Status.RUNNING, Status.PAUSED, Status.EXHAUSTED):
        before: RunId | None = None
        while rows := await store.list(RunFilter(status=status, before=before, limit=_MANY)):
            for row in rows:
                if row.tenant == tenant and not row.damage and _may_ask(row):
                    found += await asked_by(store, row)
            before = rows[-1].run
            if len(rows) < _MANY:
                break
    return sorted(found, key=lambda question: question.asked_at)


async def asked_by(store: Store, row: RunRow) -> list[Question]:
    """Return what a run asks."""
    questions: dict[str, Question] = {}
    state = RunState()
    async for event in feed(store, row.run, None, follow=False):
        if isinstance(event, e.Entry):
            state = fold(state, event)
        if isinstance(event, e.QuestionAsked):
            questions[event.step] = question_of(row, event, await read_value(store, row, event))
    return [] if state.finished else [questions[step] for step in state.questions]


async def question_at(store: Store, row: RunRow, question: str, shown: str) -> Question:
    """Return a question that may be answered by whoever was shown `shown`.

    Raises:
        NotFound: nobody asked it.
        Conflict: it was answered, is past its time, or shows something else.
    """
    asked = next((one for one in await asked_by(store, row) if one.id == question), None)
    if asked is None:
        raise await not_asked(store, question)
    if asked.shown != shown:
        raise Conflict(
            f"question {question} shows something else than what was decided", run=row.run, hint="Look at it again."
        )
    if asked.expires_at is not None and as_time(store.now()) >= asked.expires_at:
        raise past_its_time(question)
    return asked


async def not_asked(store: Store, question: str) -> Conflict | NotFound:
    """Return why a question cannot be answered: it was, or nobody asked it."""
    run, _, seq = question.partition(".")
    asked: e.QuestionAsked | None = None
    async for event in feed(store, run_id(run), None, follow=False):
        if isinstance(event, e.QuestionAsked) and str(event.seq) == seq:
            asked = event
        if asked is None or not isinstance(event, e.QuestionAnswered) or event.step != asked.step:
            continue
        if event.expired:
            return past_its_time(question)
        said = f"{'yes' if event.yes else 'no'}, by {event.by or 'a person'}"
        return Conflict(f"question {question} was answered before: {said}", run=run, hint="The first answer stands.")
    return NotFound(f"an open question {question!r}")


async def has_expired(store: Store, asked: Question) -> bool:
    """Say whether a question was decided by nobody, before an answer to it was accepted."""
    if asked.expires_at is None:
        return False
    async for event in feed(store, run_id(asked.run), None, follow=False):
        if isinstance(event, e.QuestionAnswered) and event.step == asked.step:
            return event.expired
    return False


def question_of(row: RunRow, asked: e.QuestionAsked, shown: Any) -> Question:
    """Return a question as people get it, from its entry and what is shown with it."""
    return Question(
        id=f"{row.run}.{asked.seq}", run=row.run, name=row.name, step=asked.step, text=asked.text,
        show=shown["show"], args=shown["args"], shown=asked.shown, asked_at=as_time(asked.at),
        expires_at=as_time(asked.expires_at) if asked.expires_at is not None else None,
    )  # fmt: skip


def checked_decision(question: str, yes: Any) -> bool:
    """Return a decision, which nothing but True and False is.

    Raises:
        InvalidInput: it is something else, such as the text "no", which Python takes for true.
    """
    if not isinstance(yes, bool):
        raise InvalidInput(f"question {question} is answered by True or False, not {type(yes).__name__}")
    return yes


def changed_args(asked: Question, args: Mapping[str, Any] | None) -> Raw:
    """Return what was to be agreed to, with somebody's changes.

    Raises:
        InvalidInput: that may not be changed.
    """
    args = checked_args(args)
    unknown = [name for name in args or () if name not in (asked.args or {})]
    if args is not None and (asked.args is None or unknown):
        raise _unchangeable(asked, unknown)
    for name, value in (args or {}).items():
        before = (asked.args or {})[name]
        if before is not None and value is not None and _kind(before) != _kind(value):
            raise InvalidInput(f"question {asked.id}: {name} is {_kind(before)}, such as {before!r}, not {value!r}")
    return NULL if asked.args is None else Raw(encode({**asked.args, **(args or {})}, "args="))


def _unchangeable(asked: Question, names: Sequence[str]) -> InvalidInput:
    what = ", ".join(names) if names else "anything"
    error = InvalidInput(f"question {asked.id} lets nobody change {what}")
    error.hint = f"It lets you change: {', '.join(asked.args)}." if asked.args else "It lets nothing be changed."
    return error


def _kind(value: Any) -> str:
    """Return what kind of JSON a value is."""
    kinds = ((bool, "true or false"), ((int, float), "a number"), (str, "a text"), (Mapping, "an object"))
    return next((word for types, word in kinds if isinstance(value, types)), "a list")


def past_its_time(question: str) -> Conflict:
    """Return the refusal of an answer that came too late."""
    run = question.partition(".")[0]
    return Conflict(f"question {question} is past its time, and decided: no", run=run, hint="Nobody waits for it.")


def _may_ask(row: RunRow) -> bool:
    """Say whether a run may have an open question, as far as its row tells."""
    rests = row.status in (Status.PAUSED, Status.EXHAUSTED)
    return row.owner is not None or rests or row.reason.startswith(("ask", "doubt"))
