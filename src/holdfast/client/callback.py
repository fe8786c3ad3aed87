"""What a callback token is for, and answering it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from holdfast.client.protocol import CallbackInfo
from holdfast.client.question import changed_args, question_of
from holdfast.client.reading import read_value
from holdfast.client.standing import as_time
from holdfast.core import entry as e
from holdfast.core.codec import canonical, decode_any, encode
from holdfast.core.errors import AlreadyAnswered, Expired, InvalidInput, NotFound
from holdfast.core.post import ANSWER, CALLBACK, AnswerBody, CallbackBody, answer_key, callback_key
from holdfast.core.token import place_of, read_token
from holdfast.store.protocol import Store
from holdfast.store.value import NewPost, Post, RunRow
from holdfast.stream.feed import feed

_UNKNOWN: Final = "a wait that this token is for"


class _Wait(Struct):
    """What a run's journal says of the wait that a token names."""

    opened: e.QuestionAsked | e.StepStarted | None = None
    closed: e.Entry | None = None
    over: str = ""
    """Why nobody waits any more, although it was never closed."""

    def take(self, entry: e.Entry, place: bytes) -> None:
        """Look at the next entry."""
        match entry:
            case e.QuestionAsked() | e.StepStarted(waits=[_, *_]) if place_of(entry.step) == place:
                self.opened = entry
            case e.QuestionAnswered() | e.SignalReceived() | e.StepCompleted() | e.StepFailed() if (
                self.opened is not None and entry.step == self.opened.step
            ):
                self.closed = entry
            case e.RunContinued() if self.opened is not None:
                self.over = "its run has gone on without it"
            case e.RunFinished():
                self.over = f"its run has ended: {entry.status}"
            case _:
                pass


class Found(Struct):
    """A wait that a token names, and what was answered."""

    info: CallbackInfo
    seq: int
    attempt: int
    over: str
    answer: bytes | None
    """What was answered first, in a form that can be compared."""

    async def give(
        self, store: Store, answer: Any, args: Mapping[str, Any] | None, by: str | None, note: str | None
    ) -> bool:
        """Answer it; False when that came too late, and it must be looked at again.

        Raises:
            AlreadyAnswered: it was answered otherwise before.
            Expired: nobody waits for it any more.
        """
        info = self.info
        kind, key, body = self._body(answer, args, by, note)
        if info.state == "answered":
            if _form(body) != self.answer:
                raise AlreadyAnswered(f"the wait of this token, in run {info.run}, was answered before", run=info.run)
            return True
        if info.state == "expired":
            raise Expired(f"the wait of this token, in run {info.run}, is over: {self.over}", run=info.run)
        post = NewPost(run=info.run, kind=kind, key=key, body=msgspec.json.encode(body))  # type: ignore[arg-type]
        return (await store.post(post)).outcome == "accepted"

    def _body(
        self, answer: Any, args: Mapping[str, Any] | None, by: str | None, note: str | None
    ) -> tuple[str, str, AnswerBody | CallbackBody]:
        info, asked = self.info, self.info.question
        if asked is None:
            if args is not None or note is not None:
                raise InvalidInput("args= and note= are for a question; this token brings a value")
            body = CallbackBody(info.step, Raw(encode(answer, "the answer")), by)
            return CALLBACK, callback_key(info.step, self.attempt), body
        if not isinstance(answer, bool):
            raise InvalidInput(f"this token answers a question, by True or False, not {type(answer).__name__}")
        decided = AnswerBody(info.step, answer, asked.shown, by, note, changed_args(asked, args))
        return ANSWER, answer_key(info.run, self.seq), decided


async def find_callback(store: Store, tenant: str, token: str) -> Found:
    """Return what a token is for, and how that stands.

    Raises:
        NotFound: it was not made here, or its run was deleted.
    """
    if not isinstance(token, str):
        raise InvalidInput(f"a callback token is text, not {type(token).__name__}")
    # Checked before anything is looked for: who guesses learns nothing, and costs nothing.
    known = read_token(await store.secret(), token.strip())
    row = await store.get(known[0]) if known is not None else None
    if known is None or row is None or row.tenant != tenant:
        raise NotFound(_UNKNOWN)
    # The inbox first: what is taken from it meanwhile is in the journal by then.
    posts = await store.inbox(row.run)
    wait = _Wait()
    async for event in feed(store, row.run, None, follow=False):
        if isinstance(event, e.Entry):
            wait.take(event, known[1])
    if wait.opened is None:
        raise NotFound(_UNKNOWN)
    return await _found(store, row, wait, wait.opened, posts)


async def _found(store: Store, row: RunRow, wait: _Wait, opened: e.QuestionAsked | e.StepStarted, posts: Any) -> Found:
    asked = opened if isinstance(opened, e.QuestionAsked) else None
    question = question_of(row, asked, await read_value(store, row, asked)) if asked is not None else None
    due_at = opened.expires_at if isinstance(opened, e.QuestionAsked) else opened.due_at
    attempt = opened.attempt if isinstance(opened, e.StepStarted) else 1
    key = callback_key(opened.step, attempt) if question is None else answer_key(row.run, opened.seq)
    answer, by = _given(wait.closed, next((post for post in posts if post.key == key), None))
    over = wait.over
    if not over and (wait.closed is not None or (due_at is not None and store.now() >= due_at)):
        over = "its time has passed" if not isinstance(wait.closed, e.StepFailed) else "its run has gone on without it"
    info = CallbackInfo(
        run=row.run, name=row.name, step=opened.step,
        state="answered" if answer is not None else "expired" if over else "open",
        question=question, signal=None if question is not None else opened.waits[0].partition(" ")[2],  # type: ignore[union-attr]
        expires_at=as_time(due_at) if due_at is not None else None, by=by,
    )  # fmt: skip
    return Found(info, opened.seq, attempt, over, answer)


def _given(closed: e.Entry | None, post: Post | None) -> tuple[bytes | None, str | None]:
    """Return what was answered and by whom, from the entry that took it or from the inbox."""
    if post is not None:
        body: Any = msgspec.json.decode(post.body, type=AnswerBody if post.kind == ANSWER else CallbackBody)
        return _form(body), body.by
    match closed:
        case e.QuestionAnswered(expired=False) | e.SignalReceived():
            return _form(closed), closed.by
        case _:
            return None, None


def _form(answer: Any) -> bytes:
    """Return an answer in a form that can be compared: what was decided or brought, whoever said it."""
    match answer:
        case AnswerBody():
            return canonical([answer.yes, decode_any(answer.args)])
        case e.QuestionAnswered():
            return canonical([answer.yes, decode_any(answer.raw)])
        case CallbackBody():
            return canonical(decode_any(answer.value))
        case _:
            return canonical(decode_any(answer.raw))
