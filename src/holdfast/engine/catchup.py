"""The moment before resumed code acts: every branch has asked for what is recorded of it, and nothing diverged."""

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive

_PATIENCE_SECONDS: Final = 1.0
"""How long a branch that is still on its way to what is recorded is waited for by those that have come to their end."""
_LOOK_SECONDS: Final = 0.005
_TURNS: Final = 50
"""How many turns of the loop are given to the others before it is looked with pauses."""


class CatchUp:
    """One run's way from replay to new acts."""

    def __init__(self, drive: "Drive") -> None:
        self._drive = drive
        self.pending = False
        """True while the code may not act: not all that is recorded was asked for, or its taking over is not told."""
        self.here = 0
        """How many branches have come to something that is not recorded, and wait for the others."""
        self._one = asyncio.Lock()

    async def arrive(self, step: str) -> None:
        """Wait until the code may act, where it asks for something without an outcome.

        Raises:
            BaseException: what another branch was refused for, or the run was left for, meanwhile.
        """
        drive = self._drive
        self.here += 1
        try:
            await self._others()
        except asyncio.CancelledError:
            if drive.unwinding:
                raise
            drive.mark_late()  # whoever asked looks at it next, and records it
        finally:
            self.here -= 1
        if drive.halted is not None:
            raise drive.halted
        async with self._one:
            if self.pending:
                await self._may_act(step)
                self.pending = False

    async def _may_act(self, step: str) -> None:
        """Write that this code has taken the run over, if it has."""
        if self._drive.adopting and self._drive.journal.has_notes:
            await self._drive.write()

    async def _others(self) -> None:
        """Let the branches beside this one ask for all that is recorded, unless something else keeps them."""
        drive, loop = self._drive, self._drive.loop
        give_up, turns = loop.time() + _PATIENCE_SECONDS, 0
        while drive.replay.replaying and drive.halted is None and self.pending:
            if self.here + drive.waits.waiting >= drive.waits.live or loop.time() >= give_up:
                return
            turns += 1
            await asyncio.sleep(0 if turns < _TURNS else _LOOK_SECONDS)
