"""What a run says and is told, as messages of its journal: each has its place, and closes what it came of."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw, Struct

from holdfast.core import entry as e
from holdfast.core.codec import Codec, digest, encode
from holdfast.core.errors import Damaged, Diverged, InvalidValue, NotFound
from holdfast.core.ids import RunId
from holdfast.core.message import USER, Part, Role, Text
from holdfast.core.post import STEER, SteerBody
from holdfast.core.status import Status
from holdfast.core.stepkey import branch_of, encode_name
from holdfast.engine.context import Context
from holdfast.engine.drive import Drive
from holdfast.engine.effects import Gate
from holdfast.engine.fanout import raised_first
from holdfast.engine.function import Durable, StepCode
from holdfast.engine.payload import store_value
from holdfast.engine.resting import finish
from holdfast.engine.speech import Draws, Later, MessageCall, Said, Shape, Speech, Wasted, loaded, written
from holdfast.engine.verb import Child
from holdfast.journal import replay as r
from holdfast.store.history import History, earlier
from holdfast.store.value import ConversationRow, NewBlob

_MESSAGE: Final = "message"
_CHILD: Final = "a child"
_ANY: Final = Codec(Any)


class Next(Struct, frozen=True):
    """What is recorded next in a branch: its name, percent-encoded, and its kind."""

    name: str
    what: str
    """`message` for what is closed by one; otherwise a step, a question, a child, branches and so on."""

    def is_message(self, *names: str) -> bool:
        """Say whether it is a message of one of these names."""
        return self.what == _MESSAGE and self.name in names


class Talk:
    """The verbs of code that talks. What is recorded is never compared with how the code would ask for it now."""

    def __init__(self, context: Context) -> None:
        self._context, self._drive = context, context._drive

    @property
    def drive(self) -> Drive:
        """What drives the run."""
        return self._drive

    def next(self) -> Next | None:
        """Return what is recorded next in this branch; None where everything is new."""
        branch = self._context._enter()
        found = None if branch.past else self._drive.replay.next_answer(branch.path)
        if found is None:
            return None
        key, what, answer = found
        name = key.rpartition("/")[2].rpartition("#")[0]
        return Next(name, _MESSAGE if isinstance(answer, r.Spoken) else what)

    async def recorded(self) -> Said | None:
        """Return the message that is recorded next in this branch, whatever it came of; None where none is."""
        following = self.next()
        if following is None or following.what != _MESSAGE:
            return None
        return await self._place(following.name, None, (), None)

    async def say(
        self, code: StepCode, keywords: dict[str, Any], shape: Shape, *, digest: str = "", spent: Wasted | None = None,
        tells: tuple[type[Exception], ...] = (), draws: Draws | None = None, gate: Gate | None = None,
    ) -> Any:  # fmt: skip
        """Perform a step that ends with a message, and return that as `Said`.

        A doubt that was ended by a word, or a transaction, closes the step with a value instead, which is returned.

        Raises:
            StepError: it failed, now or when it was first performed.
            InDoubt: it may or may not have happened.
        """

        def make(key: str) -> MessageCall:
            call = MessageCall(self._drive, code, keywords, key, digest)
            call.shape, call.spent, call.tells = shape, spent, tells
            call.draws, call.gate = draws, gate
            return call

        return await self.ask(code.name, make)

    async def ask(self, name: str, make: Callable[[str], MessageCall]) -> Any:
        """Perform the step that `make` makes for its key, as `say` does."""
        context, drive = self._context, self._drive
        branch = context._enter()
        key = branch.key(name, None)
        if drive.cancel_asked:
            await drive.cancelling.arrive(branch, key)
        answer = r.FRESH if branch.past else context._ask(branch, key, None, "a step")
        call = make(key)
        branch.busy = True
        try:
            if drive.handing and answer is r.FRESH:
                await drive.leave()
            if drive.catching.pending and not isinstance(answer, r.CLOSED):
                await drive.catching.arrive(key)
            if drive.late and not isinstance(answer, r.CLOSED):
                call.cancel_late()
            return await call.answer(answer)
        finally:
            branch.busy = False
            if drive.cancel_asked:
                drive.cancelling.tell_soon()

    @property
    def cursor(self) -> e.CursorMoved | None:
        """Where the run's harness stands, by its own journal; None for a run that has none yet."""
        return self._drive.replay.cursor

    async def conversation(self) -> ConversationRow | None:
        """Return where the run's conversation stands; nobody else moves it while this is its turn."""
        row = self._drive.lease.row
        if row.conversation is None:
            return None
        return await self._drive.answer(self._drive.store.conversation(row.tenant, row.conversation))

    async def bind(self, cursor: e.CursorMoved, stored: bytes) -> None:
        """Write from where a harness begins the turn; from then on the conversation is bound to it."""
        drive = self._drive
        if drive.handing:
            await drive.leave()
        if drive.catching.pending:
            await drive.catching.arrive(cursor.harness)
        await drive.write(cursor, cursor=(cursor.harness, stored))
        drive.replay.cursor = cursor

    async def put(
        self, name: str, role: Role, parts: Sequence[Part], *, post: int | None = None, by: str | None = None,
        blobs: Sequence[NewBlob] = (),
    ) -> Said:  # fmt: skip
        """Add a message that no step came to, once; return it."""
        speech = Speech(role, parts, blobs=blobs)
        return await self._place(encode_name(name), speech, () if post is None else (post,), by)

    async def _place(self, name: str, speech: Speech | None, consumed: Sequence[int], by: str | None) -> Said:
        context, drive = self._context, self._drive
        branch = context._enter()
        key = branch.key(name, None)
        if drive.cancel_asked:
            await drive.cancelling.arrive(branch, key)
        answer = r.FRESH if branch.past else context._ask(branch, key, None, "a step")
        if isinstance(answer, r.Spoken):
            await drive.replayed()
            return await loaded(drive, answer.entry)
        if answer is not r.FRESH or speech is None:
            raise drive.refuse(Diverged(seq=0, recorded=f"{key!r} as something else", asked="it as a message"))
        branch.busy = True
        try:
            if drive.handing:
                await drive.leave()
            if drive.catching.pending:
                await drive.catching.arrive(key)
            entry, blobs, message = written(drive, key, speech)
            entry = msgspec.structs.replace(entry, post=consumed[0] if consumed else None, by=by)
            await drive.write(entry, blobs=blobs, consumed=consumed)
            return Later(entry, message).said()
        finally:
            branch.busy = False
            if drive.cancel_asked:
                drive.cancelling.tell_soon()

    async def heard(self) -> list[Said]:
        """Return what the run was told since this was last asked, each recorded where it was taken in."""
        said: list[Said] = []
        while (following := self.next()) is not None:
            if not following.is_message(STEER):
                return said
            said.append(await self._place(STEER, None, (), None))
        for post in await self._drive.waits.inbox.look():
            if post.kind == STEER:
                word = msgspec.json.decode(post.body, type=SteerBody)
                said.append(await self.put(STEER, USER, [Text(word.text)], post=post.seq, by=word.by))
        return said

    async def each(self, calls: Sequence[Callable[[], Coroutine[Any, Any, Any]]], at_once: int) -> list[Any]:
        """Let several go on beside each other, a bounded number at a time; return what they returned, in order.

        Raises:
            BaseException: what the first that failed raised, once all have ended.
        """
        context, drive = self._context, self._drive
        branch = context._enter()
        if drive.cancel_asked:
            await drive.cancelling.arrive(branch, branch.next_set("gather"))
        branch.busy = True
        try:
            return raised_first(*await context._branches.each(branch, calls, at_once))
        finally:
            branch.busy = False

    async def child(self, what: Durable[Any, ...], arguments: dict[str, Any]) -> Any:
        """Start a child, and return its result.

        Raises:
            InvalidInput: it does not take these arguments.
            RunError: it failed or was cancelled.
        """
        body = what.encode_input(arguments)
        async with self._context._verb(_CHILD, what.name, Raw(body)) as verb:
            child = await verb.spawn(what, body, {}, None)
        return await self._result(what, verb.key, child)

    async def same_child(self, what: Durable[Any, ...] | None, read: Callable[[], dict[str, Any]]) -> Any:
        """Return the result of the child that is recorded next, whatever has become of its code and its name.

        `read` returns arguments for `what`; it is called only where a fork spawns one of its own instead.

        Raises:
            RunError: it failed or was cancelled.
            NotFound: one was to be spawned, and there is no code for it; or that could not be done before.
        """
        drive, following = self._drive, self.next()
        assert following is not None
        name = unquote(following.name)
        verb = self._context._verb(_CHILD, name, None)
        verb.lenient = True
        async with verb:
            child = verb.spawned()
            if child is not None and what is not None:
                drive.on_spawn(what, child)
            elif child is None:
                if what is None or drive.replay.peek(branch_of(verb.key)) is not None:
                    raise NotFound(f"the code of {name}")
                body = what.encode_input(read())
                verb.digest = digest(Raw(body), f"the input of {verb.key}")
                child = await verb.spawn(what, body, {}, None)
        return await self._result(what, verb.key, child)

    async def _result(self, what: Durable[Any, ...] | None, step: str, child: RunId) -> Any:
        """Return a child's result, as plain data where it is not what its code returns now."""
        value: Any = await Child(self._context._verb, self._drive, child, step, _ANY).result()
        try:
            return what.result.decode(encode(value)) if what is not None else value
        except InvalidValue:
            return value

    async def earlier(self) -> History:
        """Return what was said in the conversation before this turn.

        Raises:
            Damaged: a turn before it cannot be read; the run is refused for it.
        """
        row = self._drive.lease.row
        if row.conversation is None:
            return History([])
        try:
            return await self._drive.answer(earlier(self._drive.store, row.tenant, row.conversation, row.turn))
        except (Damaged, NotFound, InvalidValue) as error:
            raise self._drive.refuse(Damaged(run=row.run, seq=None, what=f"its conversation: {error}")) from error

    async def end(self, said: Said, value: Any, codec: Codec) -> bool:
        """End the run with a result; False when the run was told something before that, and shall go on.

        A result that is the text of the message is not stored again. The code has nothing left to do but to return.
        """
        drive = self._drive
        if drive.cancel_asked:
            return True  # what it says does not matter any more
        try:
            drive.replay.finish()
        except Diverged as diverged:
            raise drive.refuse(diverged) from None
        if said.inline and isinstance(value, str) and value == said.message.text:
            entry = e.RunFinished(status=Status.COMPLETED, said=said.seq)
            result, blobs = Raw(msgspec.json.encode(value)), ()  # type: Raw | None, Sequence[NewBlob]
        else:
            raw, blob, blobs, _ = store_value(codec, value, "the result", drive.secrets)
            entry, result = e.RunFinished(status=Status.COMPLETED, raw=raw, blob=blob), None
        drive.over = await finish(drive, entry, blobs, result=result, unless=self._is_told)
        return drive.over

    async def is_told(self) -> bool:
        """Say whether something waits that the run was told and has not taken in."""
        await self._drive.waits.inbox.look()
        return self._is_told()

    def _is_told(self) -> bool:
        return any(post.kind == STEER for post in self._drive.waits.inbox.waiting)
