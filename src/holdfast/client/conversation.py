"""A handle to one conversation: a durable chat whose turns are runs."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, Protocol, TypeVar
from uuid import uuid4

import msgspec

from holdfast.client.local import LocalClient
from holdfast.client.protocol import RunSummary
from holdfast.client.run import Run
from holdfast.client.telling import tell_runs
from holdfast.core import limits
from holdfast.core.codec import Codec, decode_any, encode
from holdfast.core.errors import Conflict, InvalidInput
from holdfast.core.ids import TENANT, RunId, checked_text
from holdfast.core.message import Message
from holdfast.core.post import STEER, SteerBody, steer_key
from holdfast.core.status import Status
from holdfast.core.stepkey import join_key
from holdfast.store.history import earlier
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
IfBusy = Literal["queue", "reject", "steer", "interrupt"]
Key = str | tuple[str | int, ...]
_WAYS: Final = ("queue", "reject", "steer", "interrupt")


class Begin(Protocol[R_co]):
    """Starts the next turn with a message."""

    def __call__(self, text: str, *, key: str | None, if_idle: bool) -> Awaitable[Run[R_co]]:
        """Start it, or find the one that the key belongs to."""
        ...


class Conversation(Generic[R]):
    """One durable chat; the handle may be dropped and got again by its id at any time, in any process."""

    __slots__ = ("_begin", "_client", "_codec", "_names", "_store", "_tenant", "id")

    def __init__(
        self, store: Store, client: LocalClient, conversation: str, begin: Begin[R], codec: Codec | None = None,
        names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._store, self._client, self._begin, self._codec, self._tenant = store, client, begin, codec, TENANT
        self._names = names
        self.id = checked_text("the conversation", conversation, limits.KEY_BYTES)

    def __repr__(self) -> str:
        return f"<conversation {self.id}>"

    async def send(
        self, text: str, *, key: Key | None = None, if_busy: IfBusy = "queue", by: str | None = None
    ) -> Run[R]:
        """Say something, and return the run that answers it; the same key is said once.

        While a turn is under way the message waits for it (`queue`), is refused (`reject`), is told to the agent at
        work (`steer`), or ends the turn and takes its place (`interrupt`). A turn that ends before it has heard what it
        was told leaves it to the next one, which the key then belongs to. Another agent's turn is told nothing: the
        message waits for it.

        Raises:
            ConversationBusy: a turn is open, and the message was to be rejected then.
            Conflict: the key was used for something else. Of a word that a turn has heard, the key alone counts.
        """
        if if_busy not in _WAYS:
            raise InvalidInput(f"if_busy= is one of {', '.join(_WAYS)}, not {if_busy!r}")
        said = join_key(key) if key is not None else None
        if if_busy == "steer":
            return await self._steer(text, said, by)
        run = await self._begin(text, key=said, if_idle=if_busy == "reject")
        if if_busy == "interrupt":
            await self._interrupt(run.id, by)
        return run

    async def _interrupt(self, run: RunId, by: str | None) -> None:
        """Ask for the end of the turn that is under way before this one."""
        own, open_turn = await self._store.get(run), await self._open_turn()
        if own is not None and open_turn is not None and (open_turn.turn or 0) < (own.turn or 0):
            await self._client.cancel(open_turn.run, reason="interrupted by a later message", by=by)

    async def _steer(self, text: str, key: str | None, by: str | None) -> Run[R]:
        turn = key or str(uuid4())
        while True:
            if key is not None and (heard := await self._heard(key)) is not None:
                await self._check_same(heard.run, key, text)
                return Run(self._client, heard.run, self._codec)
            open_turn = await self._open_turn()
            # Another agent would hear it in this one's place, and the turn that it leaves it to would be its own.
            others = open_turn is None or open_turn.name not in self._names
            if open_turn is None or others or await self._store.find(self._tenant, turn) is not None:
                return await self._begin(text, key=turn, if_idle=False)
            # One that has ended meanwhile is not open when it is looked for again.
            if await self._client.steer(open_turn.run, text, key=turn, by=by, turn=turn) != "ended":
                return Run(self._client, open_turn.run, self._codec)

    async def _heard(self, key: str) -> RunRow | None:
        """Return the turn that was told this before, unless it left it to a turn of its own."""
        if await self._store.find(self._tenant, key) is not None:
            return None
        which = RunFilter(conversation=(self._tenant, self.id), posted=steer_key(key), limit=1)
        return next(iter(await self._store.list(which)), None)

    async def _check_same(self, run: RunId, key: str, text: str) -> None:
        """Refuse another text under the key of a word that still waits to be heard."""
        waiting = {post.key: post.body for post in await self._store.inbox(run) if post.kind == STEER}
        body = waiting.get(steer_key(key))
        if body is not None and msgspec.json.decode(body, type=SteerBody).text != text:
            raise Conflict(f"the key {key!r} was used for another text", run=run, differs=("input",))

    async def _open_turn(self) -> RunRow | None:
        """Return the turn that is under way, or would be next."""
        row = await self._store.conversation(self._tenant, self.id)
        if row is None:
            return None
        if row.active is not None:
            return await self._store.get(row.active)
        over = (Status.QUARANTINED, Status.COMPLETED, Status.FAILED, Status.CANCELLED)
        rest = await self._store.turns(self._tenant, self.id, after=row.over)
        return next((turn for turn in rest if turn.status not in over), None)

    async def history(self) -> list[Message]:
        """Return everything that was said, in order; of a turn under way, what it has committed.

        Raises:
            Damaged: an entry of a turn is missing or altered.
        """
        return (await earlier(self._store, self._tenant, self.id)).messages

    async def phase(self) -> str:
        """Return the phase that its agent last entered; nothing before that, or where the agent has no phases.

        Raises:
            Damaged: an entry of a turn is missing or altered.
        """
        return (await earlier(self._store, self._tenant, self.id)).phase

    async def turns(self, *, after: int = 0) -> Sequence[RunSummary]:
        """Return its runs, the oldest first; those behind the turn numbered `after`, if the others are known."""
        rows: list[RunRow] = []
        while page := await self._store.turns(self._tenant, self.id, after=after):
            rows += page
            after = page[-1].turn or after
        return await tell_runs(self._store, rows, await self._client.here.serving(rows))

    async def metadata(self) -> dict[str, Any]:
        """Return what you keep with it: yours alone, never shown to a model.

        Raises:
            Damaged: it is not as it was stored.
        """
        row = await self._store.conversation(self._tenant, self.id)
        kept: dict[str, Any] = decode_any(row.metadata) if row is not None else {}
        return kept

    async def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Keep something with it, in place of what was kept before: a title, whose it is.

        Raises:
            InvalidInput: it is not data, or too large.
        """
        if not isinstance(metadata, Mapping):
            raise InvalidInput(f"metadata is a mapping, not {type(metadata).__name__}")
        body = encode(dict(metadata), "the metadata")
        if len(body) > limits.INLINE_BYTES:
            raise InvalidInput(f"the metadata is {len(body):,} bytes; the limit is {limits.INLINE_BYTES:,}")
        await self._store.annotate(self._tenant, self.id, body)
