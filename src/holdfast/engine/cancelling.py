"""How the code of a run whose end was asked for is told of it, and what is left to it then."""

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

from holdfast.core import entry as e
from holdfast.core.errors import Parked
from holdfast.core.status import Status
from holdfast.engine.resting import finish
from holdfast.journal.replay import Cancelled

if TYPE_CHECKING:
    from holdfast.engine.branches import Branch
    from holdfast.engine.drive import Drive

_MOST_UNHEEDED: Final = 1000
"""How often code may ask for more after its run's end was asked for, before the run ends without it."""


class Cancelling:
    """The way of one run's code to an end that somebody asked for."""

    def __init__(self, drive: "Drive") -> None:
        self._drive = drive
        self.reason = ""
        self.told = False
        """True once the code was told that the run shall end."""
        self._cleaned = False
        """True once the code has taken the one step that is left to it then."""
        self._unheeded = 0
        """How often it asked for more than that."""

    def ending(self, error: e.ErrorInfo | None = None) -> e.RunFinished:
        """Return the ending of a run whose end was asked for."""
        return e.RunFinished(status=Status.CANCELLED, reason=self.reason or "cancelled", error=error)

    def tell(self) -> None:
        """Let the code know that the run shall end: it is cancelled wherever it waits."""
        drive = self._drive
        if not self.told and drive.task is not None and not drive.resting:
            self.told = True
            drive.task.cancel()

    def tell_soon(self) -> None:
        """Let code that does not ask for anything more be told too, once it has asked for all that was recorded."""
        if not self.told and not self._drive.replay.replaying:
            self._drive.loop.call_soon(self.tell)

    async def be_told(self) -> NoReturn:
        """Wait where the code is told that the run shall end.

        Raises:
            CancelledError: always; the branches beside this one have come to their places.
        """
        self._drive.loop.call_soon(self.tell)
        await self._drive.loop.create_future()
        raise AssertionError("nobody sets it")

    async def left_again(self, left: Cancelled) -> NoReturn:
        """Wait to be cancelled where the code was before."""
        drive = self._drive
        if drive.cancel_asked and left.seq > drive.replay.cancel_seq:
            drive.loop.call_soon(self.tell)
        await drive.loop.create_future()
        raise AssertionError("nobody sets it")

    async def withhold(self) -> None:
        """Let an intent that was refused for the end that somebody asked for wait until its task is cancelled.

        Raises:
            CancelledError: it was; if it was told while the intent was on its way, that comes here.
        """
        drive = self._drive
        if drive.cancel_asked and not self._cleaned:
            if self.told and drive.late and drive.is_late():
                await asyncio.sleep(0)  # takes what was told to this very task a moment ago: once is enough
                raise asyncio.CancelledError
            await drive.loop.create_future()

    async def arrive(self, branch: "Branch", *keys: str, cleaning: bool = False) -> None:
        """Let a verb of a run that shall end be where its code is told; afterwards one step is left to it.

        Raises:
            CancelledError: the code was told, here or before.
            Parked: it does not heed that, again and again; the run has ended without it.
        """
        drive = self._drive
        if not self.told:
            if cleaning and not branch.past and drive.replay.is_cleaning(branch.path, keys[0]):
                # Nothing else is begun then: in its first life the code was told before it came here.
                self.told = self._cleaned = True
                return
            if not branch.past and not drive.replay.is_told(branch.path, keys):
                return
            await self.be_told()
        if drive.late and drive.is_late():
            raise asyncio.CancelledError  # told while an entry was written, and passed over then
        if not cleaning or self._cleaned:
            await self._refuse()
        self._cleaned = True

    async def _refuse(self) -> NoReturn:
        """Refuse what is asked for after the run's end was; code that goes on asking is left where it is."""
        self._unheeded += 1
        await asyncio.sleep(0)  # a loop that swallows this must not keep the runs beside it from theirs
        if self._unheeded > _MOST_UNHEEDED:
            await finish(self._drive, self.ending())
            raise self._drive.halt(Parked("cancelled"))
        raise asyncio.CancelledError
