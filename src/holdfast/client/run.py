"""A handle to one run."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, cast

from holdfast.client.protocol import Client, Ending, Question, RunInfo
from holdfast.core import limits
from holdfast.core.budget import Money
from holdfast.core.codec import Codec
from holdfast.core.errors import BudgetExceeded, RunError
from holdfast.core.ids import RunId
from holdfast.core.retry import checked_seconds
from holdfast.core.signal import Carrier, Signal
from holdfast.core.status import Status
from holdfast.stream.event import Event

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
_ANY = Codec(Any)


class Run(Generic[R_co]):
    """One durable run; the handle may be dropped and got again by id or key at any time."""

    __slots__ = ("_client", "_codec", "created", "id")

    def __init__(
        self, client: Client, run: RunId, codec: Codec | None = None, *, created: bool = False
    ) -> None:  # fmt: skip
        self._client, self._codec = client, codec
        self.id = run
        self.created = created

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    async def info(self) -> RunInfo:
        """Return where the run stands."""
        return await self._client.info(self.id)

    def events(self, after: str | int | None = None, *, follow: bool = True) -> AsyncIterator[Event]:
        """Yield the run's events after a cursor: history, then live until it ends."""
        return self._client.events(self.id, after=after, follow=follow)

    async def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Return what the run returned.

        Raises:
            RunError: it failed, was cancelled, or rests where only a person or other code can help.
            BudgetExceeded: it rests because its budget is used up.
            TimeoutError: it has not ended in time; the run goes on.
        """
        limit = checked_seconds("timeout=", timeout, least=-limits.DURATION_SECONDS) if timeout is not None else None
        return self.read(await self._client.wait(self.id, timeout_seconds=limit))

    def read(self, ending: Ending) -> R_co:
        """Return the result that an ending holds.

        Raises:
            RunError: it holds none.
        """
        if ending.status is not Status.COMPLETED:
            kind = BudgetExceeded if ending.status is Status.EXHAUSTED else RunError
            error = kind(run=self.id, status=ending.status, reason=ending.reason, error=ending.error)
            if ending.error is not None and (trace := ending.error.get("traceback")):
                error.add_note(f"It was raised in the run's own code:\n{trace}")
            raise error
        return cast(R_co, (self._codec or _ANY).decode(ending.value, f"the result of run {self.id}"))

    async def value(self, event: Event) -> Any:
        """Return what an event of this run holds, as plain data, wherever it is stored."""
        return await self._client.value(event)

    async def signal(
        self, signal: Carrier[T] | str, value: T | None = None, *, key: str | None = None, by: str | None = None
    ) -> bool:
        """Send a signal; with a key it is sent once however often it is asked for. False when the run had ended."""
        name: Any = signal
        if isinstance(signal, Signal):
            signal.check(value)
            name = signal.name
        return await self._client.signal(self.id, name, value, key=key, by=by)

    async def steer(self, text: str, *, by: str | None = None, key: str | None = None) -> bool:
        """Tell an agent something while it works: it hears it before it asks its model again. False when it had ended.

        With a key it is told once however often it is asked for. A run that ends otherwise before it hears it leaves it
        untold; `Conversation.send(..., if_busy="steer")` makes a turn of it then.
        """
        return await self._client.steer(self.id, text, key=key, by=by) != "ended"

    async def cancel(self, reason: str = "", *, by: str | None = None) -> bool:
        """Ask for the run's end: its code is cancelled where it waits, and may clean up. False when it had ended."""
        return await self._client.cancel(self.id, reason=reason, by=by)

    async def pause(self, reason: str = "", *, by: str | None = None) -> bool:
        """Ask the run to rest at its next entry, until `resume`. False when it had ended."""
        return await self._client.pause(self.id, reason=reason, by=by)

    async def resume(self, *, by: str | None = None) -> bool:
        """Let a paused run go on. False when it had ended."""
        return await self._client.resume(self.id, by=by)

    async def retry(self, *, by: str | None = None) -> "Run[R_co]":
        """Let the run be tried again once the cause is gone, and return the run that is: itself, if it was set aside.

        One that failed is tried again as a fork from just before its ending, under its key: what was done is not
        done again, and what failed last is. However many ask, there is one.

        Raises:
            Conflict: it completed or was cancelled, or goes on by itself.
        """
        return Run(self._client, await self._client.retry(self.id, by=by), self._codec)

    async def fork(self, at: int | None = None, *, by: str | None = None) -> "Run[R_co]":
        """Start a run that has this one's history up to entry `at`, or up to now, and goes on by itself from there.

        Raises:
            InvalidInput: there is no such entry, or it belongs to the run's end.
        """
        return Run(self._client, await self._client.fork(self.id, at, by=by), self._codec)

    async def raise_budget(
        self, *, steps: int | None = None, calls: int | None = None, tokens: int | None = None,
        usd: Money | None = None, deadline: float | timedelta | datetime | None = None, reason: str = "",
        by: str | None = None, key: str | None = None,
    ) -> bool:  # fmt: skip
        """Add to what the run may spend, or let it go on until a later time; an exhausted run goes on with that.

        `deadline` is a time with its zone, or how long from now. With a key it is raised once however often it is asked
        for. False when the run had ended.

        Raises:
            Conflict: the run has no such limit.
        """
        return await self._client.raise_budget(
            self.id, steps=steps, calls=calls, tokens=tokens, usd=usd, deadline=deadline, reason=reason, by=by, key=key
        )  # fmt: skip

    async def questions(self) -> Sequence[Question]:
        """Return what the run waits for a person to decide."""
        return await self._client.questions(self.id)

    def export(self) -> AsyncIterator[bytes]:
        """Yield the run as the lines of an archive, whole and checked; of one that goes on, what stands there now."""
        return self._client.export(self.id)

    async def delete(self) -> bool:
        """Delete the run, which must have ended; its key stays taken. False if it is not there any more.

        Raises:
            Conflict: it has not ended, or a run around it that has not may need it.
        """
        return await self._client.delete(self.id)

    async def resolve(self, step: str, value: Any, *, by: str | None = None, note: str | None = None) -> None:
        """End a step's doubt: with the value it returned, or with `hf.NOT_DONE`.

        Raises:
            NotFound: the run has no such step in doubt.
        """
        await self._client.resolve(self.id, step, value, by=by, note=note)
