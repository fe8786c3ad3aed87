"""A run whose code has diverged from its journal: it rests, and the log and its reason say why."""

from typing import TYPE_CHECKING

from holdfast.core.divergence import advice, told
from holdfast.core.errors import Diverged
from holdfast.core.status import Status
from holdfast.engine.resting import rest

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive


async def rest_diverged(drive: "Drive", refused: Diverged) -> None:
    """Let a run rest that this code cannot follow, until other code comes or somebody asks for another try."""
    # Whoever adopts follows all that is recorded first: until then the version that has the run is another.
    same = drive.state.code == drive.code and not drive.adopting
    said = told(refused, same=same)
    # Before it is written: whoever waits for the run may close the runtime on it.
    drive.log.warning(
        "the run is refused: its code has diverged",
        name=drive.lease.row.name, entry=refused.seq, recorded=refused.recorded, asked=refused.asked, code=drive.code,
        hint=f"{advice(said)} `holdfast preflight` tells of every open run whether this code can follow it.",
    )  # fmt: skip
    await rest(drive, Status.WAITING, "diverged", due_at=drive.store.now(), detail=said, code=drive.code)
