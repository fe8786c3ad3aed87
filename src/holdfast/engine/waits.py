"""What a run's branches wait for: posts and times; when all of them wait, the run rests."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.core import entry as e
from holdfast.core.budget import BUDGET, STEPS
from holdfast.core.errors import Lost, Parked
from holdfast.core.post import CANCEL, CONTROLS, PAUSE, RAISE, RESUME, Control
from holdfast.core.status import Status
from holdfast.engine.budget import hear_raise
from holdfast.engine.inbox import Inbox
from holdfast.engine.resting import park
from holdfast.store.value import Post

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive

_LINGER_SECONDS: Final = 0.2
"""How long a run whose children are under way is kept before it is parked."""
_LOOK_SECONDS: Final = 1.0
_LEAVING: Final = "leave"
_BY_INTEREST: Final = (
    "doubt",
    "ask",
    "callback",
    "signal",
    "child",
    "limit",
    "harness",
    "pace",
    "retry",
    "sleep",
    BUDGET,
)
"""Of several waits the first of these gives the run's rest its name."""

Takes = Callable[[Post], bool]
Ready = Callable[[], bool]


class Waiting:
    """One branch's wait."""

    __slots__ = ("detail", "future", "ready", "said", "takes", "told")

    def __init__(
        self, said: e.Wait, detail: str, takes: Takes | None, ready: Ready | None, told: bool,
        future: "asyncio.Future[Post | None]",
    ) -> None:  # fmt: skip
        self.said, self.detail, self.takes, self.ready, self.future = said, detail, takes, ready, future
        self.told = told
        """True when it began after the code was told that the run shall end: nobody cancels it for that."""


class Waits:
    """All waits of one run, looked after by one task while there are any.

    `live` counts the branches whose code is under way. When each of them waits, nothing can happen but by a post or
    with time: the run is parked, unless something is due in a moment.
    """

    def __init__(self, drive: "Drive") -> None:
        self._drive = drive
        self._waiting: list[Waiting] = []
        self.inbox = Inbox(drive)
        self._live = 1
        self._task: asyncio.Task[None] | None = None
        self._bell: Any = None
        self._since = 0.0

    # Branches

    @property
    def live(self) -> int:
        """How many branches are under way."""
        return self._live

    @property
    def waiting(self) -> int:
        """How many of them wait."""
        return len(self._waiting)

    def fork(self, branches: int) -> None:
        """Count the branches that take the place of the one that started them."""
        self._live += branches - 1
        self._drive.outbox.merge(self._live > 1)
        self.wake()

    def join(self, *, last: bool) -> None:
        """Count a branch that ended; the last of a set hands its place back."""
        if not last:
            self._live -= 1
            self.wake()
        self._drive.outbox.merge(self._live > 1)

    # Waiting

    async def until(
        self, kind: str, step: str, *, due_at: int | None, name: str = "", detail: str = "", takes: Takes | None = None,
        ready: Ready | None = None,
    ) -> Post | None:  # fmt: skip
        """Return the post that ends the wait, or None when its time has come or it is `ready` to end.

        Raises:
            Parked: the run rests; its code is left here.
            CancelledError: the code was cancelled, here or while the entry before was written.
        """
        loop = self._drive.loop
        if kind != _LEAVING and self._drive.late and self._drive.is_late():
            raise asyncio.CancelledError
        if self._drive.cancel_asked and not self._drive.cancelling.told:
            # What it had left when it was told is still open, and is left again.
            loop.call_soon(self._drive.cancelling.tell)
        told = self._drive.cancelling.told
        waiting = Waiting(e.Wait(kind, step, name, due_at), detail, takes, ready, told, loop.create_future())
        self._waiting.append(waiting)
        self._since = loop.time()
        if self._task is None:
            self._task = loop.create_task(self._look_after(), name=f"waits of run {self._drive.lease.row.run}")
        else:
            self.wake()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if waiting.future.done() and not waiting.future.cancelled() and waiting.future.exception() is None:
                post = waiting.future.result()
                if post is not None:
                    self.inbox.put_back(post)  # it came too late for this wait; another may take it
            raise
        finally:
            self._waiting.remove(waiting)

    def settle(self, step: str) -> None:
        """End what other branches wait for in that step, whose post one of them took."""
        for waiting in self._waiting:
            if waiting.said.step == step and not waiting.future.done():
                waiting.future.set_result(None)

    def wake(self) -> None:
        """Look again: something was posted, or a branch began, ended or waits."""
        if self._bell is not None:
            self._bell.ring()

    def posted(self, inbox_seq: int, control_seq: int) -> None:
        """Hear that posts have come; those that only matter to a wait matter only if there is one."""
        drive = self._drive
        if not drive.loaded or drive.resting or drive.halted is not None:
            return
        if self._task is not None:
            self.wake()
        elif control_seq > drive.journal.control_seq and not drive.cancel_asked:
            self._task = drive.loop.create_task(self._look_after(), name=f"waits of run {drive.lease.row.run}")

    async def look(self) -> None:
        """Heed the controls among the posts that have come."""
        refused_for = self._drive.outbox.control_seq
        await self._heed(await self.inbox.look())
        journal = self._drive.journal
        journal.control_seq = max(journal.control_seq, refused_for)

    async def _look_after(self) -> None:
        drive = self._drive
        self._bell = bell = drive.store.watch(drive.lease.row.run, entries=False)
        try:
            while True:
                posts = await self.inbox.look()
                await self._heed(posts)
                self._end(posts)
                if not self._waiting:
                    return
                if self._all_wait and await self._rest():
                    return
                await bell.wait(self._patience())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Whoever waits is told: alone it would wait for ever.
            self._unwind(error)
            if not self._waiting and isinstance(error, Lost) and drive.task is not None:
                drive.lose(str(error))
                drive.task.cancel()
        finally:
            bell.close()
            self._bell = self._task = None

    def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()

    @property
    def _all_wait(self) -> bool:
        return len(self._waiting) == self._live and not any(waiting.future.done() for waiting in self._waiting)

    def _end(self, posts: Sequence[Post]) -> None:
        """End every wait whose post has come, or whose time."""
        now = self._drive.store.now()
        for waiting in self._waiting:
            if waiting.future.done():
                continue
            if waiting.said.kind == _LEAVING and not self._drive.handing:
                waiting.future.set_result(None)
                continue
            if waiting.ready is not None and waiting.ready():
                waiting.future.set_result(None)
                continue
            takes = waiting.takes
            found = next((post for post in posts if takes is not None and takes(post) and self.inbox.take(post)), None)
            if found is not None:
                waiting.future.set_result(found)
            elif waiting.said.due_at is not None and waiting.said.due_at <= now:
                waiting.future.set_result(None)

    def _times(self) -> Iterator[int]:
        return (waiting.said.due_at for waiting in self._waiting if waiting.said.due_at is not None)

    def _patience(self) -> float:
        soonest = min(self._times(), default=None)
        if soonest is None:
            return _LOOK_SECONDS
        return min(_LOOK_SECONDS, max(0.0, (soonest - self._drive.store.now()) / 1e6))

    # Resting

    async def _rest(self) -> bool:
        """Leave or park the run whose every branch waits; False when it is not to be, or a post came between."""
        drive = self._drive
        if drive.handing and drive.pausing is None:
            drive.stop()
            self._unwind(asyncio.CancelledError())
            return True
        if drive.cancel_asked and not all(waiting.told for waiting in self._waiting):
            # The way of a cancellation into branches is longer than that of a commit. Parked now, the run would rest
            # for good: who asked for its end was heard, and wakes it no more.
            drive.cancelling.tell()
            return False
        if drive.pausing is None and self._is_worth_keeping():
            return False
        if await self._park(min(self._times(), default=None)):
            self._unwind(drive.halt(Parked(self._waiting[0].said.kind)))
            return True
        return False

    async def _park(self, soonest: int | None) -> bool:
        drive = self._drive
        waits = [waiting.said for waiting in self._waiting if waiting.said.kind != _LEAVING]
        if drive.pausing is not None:
            asked = msgspec.json.decode(drive.pausing.body, type=Control)
            return await park(
                drive, Status.PAUSED, "paused", detail=asked.reason, waits=waits, consumed=sorted(drive.heeded)
            )
        first = min(self._waiting, key=lambda waiting: _BY_INTEREST.index(waiting.said.kind))
        if first.said.kind == BUDGET:
            # Last of all: no branch can go on without more.
            channel = first.said.name.partition(" ")[0] or STEPS
            return await park(
                drive, Status.EXHAUSTED, channel, step=first.said.step, detail=first.detail, waits=waits
            )  # fmt: skip
        if drive.purse is not None and drive.purse.deadline is not None:
            soonest = min(soonest, drive.purse.deadline) if soonest is not None else drive.purse.deadline
        return await park(
            drive,
            Status.WAITING,
            first.said.kind,
            due_at=soonest,
            step=first.said.step,
            detail=first.detail,
            waits=waits,
        )

    def _is_worth_keeping(self) -> bool:
        """Say whether something is due in a moment; a doubt is looked at anew by whoever claims the run."""
        loop, now = self._drive.loop, self._drive.store.now()
        kinds = {waiting.said.kind for waiting in self._waiting}
        soonest = min(self._times(), default=None)
        patience = self._drive.around.patience_seconds
        if "doubt" not in kinds and soonest is not None and soonest - now <= patience * 1e6:
            return True
        linger = min(_LINGER_SECONDS, patience)
        return "child" in kinds and not self._drive.crowded() and loop.time() < self._since + linger

    def _unwind(self, reason: BaseException) -> None:
        for waiting in self._waiting:
            if not waiting.future.done():
                waiting.future.set_exception(reason)

    # Controls

    async def _heed(self, posts: Sequence[Post]) -> None:
        """Heed what anybody may ask of a run: its end, a pause, that the pause be over."""
        drive = self._drive
        controls = [post for post in posts if post.kind in CONTROLS]
        if not controls:
            return
        drive.journal.control_seq = max(drive.journal.control_seq, controls[-1].seq)
        ends = next((post for post in controls if post.kind == CANCEL), None)
        pauses = [post for post in controls if post.kind in (PAUSE, RESUME)]
        drive.heeded |= {post.seq for post in pauses}
        # The last word counts, and against an end that was asked for a pause does not.
        pausing = bool(pauses) and pauses[-1].kind == PAUSE and ends is None and not drive.cancel_asked
        drive.pausing = pauses[-1] if pausing else None
        drive.handing = pausing or drive.draining()
        for post in controls:
            if post.kind == RAISE:
                self.inbox.forget((post.seq,))
                await hear_raise(drive, post)
                self.wake()
        if ends is not None and not drive.cancel_asked:
            await self._cancel(ends)

    async def _cancel(self, post: Post) -> None:
        drive = self._drive
        asked = msgspec.json.decode(post.body, type=Control)
        drive.cancel_asked = True
        drive.cancelling.reason = f"cancelled: {asked.reason}" if asked.reason else "cancelled"
        entry = e.CancelReceived(post=post.seq, by=asked.by, reason=drive.cancelling.reason)
        self.inbox.forget((post.seq,))
        await drive.written(drive.outbox.append(entry, consumed=(post.seq,)))
        drive.replay.cancel_seq = drive.journal.seq
        # Code that still asks for what was recorded is told when it has come to the end of that.
        if not drive.replay.replaying:
            drive.cancelling.tell()
