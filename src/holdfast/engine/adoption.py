"""New code taking a run over: forward only, and with an entry that says so before it acts."""

from typing import TYPE_CHECKING, Any

from holdfast.core import entry as e
from holdfast.core.post import RETRY
from holdfast.core.version import CodeVersion, adopted, refusing
from holdfast.engine.function import Durable

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive


async def keeper_of(drive: "Drive") -> CodeVersion | None:
    """Return the version that has the run, if it is a later one than this worker's, and nobody says otherwise.

    Whoever asks that the run be tried again, or that this process drive it, asks it of the code that is here.
    """
    if drive.versions is None or not drive.versions.bound or drive.state.code in ("", drive.code):
        return None
    row = drive.lease.row
    known = await drive.answer(drive.versions.find(row.name, drive.state.code))
    if known is None or known.place <= drive.place:
        return None
    posts = await drive.answer(drive.store.inbox(row.run))
    if any(post.kind == RETRY and post.seq > row.seen_seq for post in posts):
        return None
    return known


async def adopt(drive: "Drive", function: Durable[Any, ...]) -> None:
    """Make ready to write that this code has taken the run over, once it has followed all that is recorded."""
    before = drive.state.code
    if drive.versions is None or before == drive.code or (not before and drive.lease.why == "started"):
        return
    name = drive.lease.row.name
    known = await drive.answer(drive.versions.find(name, before))
    own = await drive.answer(drive.versions.find(name, drive.code))
    said = [f"{name!r} is {function.name!r} now"] if function.name != name else []
    if known is None or own is None:
        said.append("no worker had served it with the version before")
    else:
        said.append("its source is the same" if known.source == own.source else "its source is another")
    # Written before the code acts; it is withdrawn if the code does not follow what is recorded.
    drive.adopting = True
    drive.journal.note(e.SpecAdopted(code=drive.code, before=before, difference="; ".join(said)))


def version_of(drive: "Drive", what: Durable[Any, ...]) -> tuple[str, int]:
    """Return the version that a function is served with here, and its place; nothing for one that is not."""
    served = drive.versions.of(what.name) if drive.versions is not None else None
    return (served.code, served.place or 0) if served is not None else ("", 0)


def word_of(drive: "Drive") -> str:
    """Return what the row says of the code that the run wants, now that this version drives it."""
    word = drive.lease.row.refused
    return adopted(word, drive.place) if drive.place else word


def word_refused(drive: "Drive") -> str:
    """Return the row's word once this code was refused: what it did not take over stays with whoever has it."""
    if any(isinstance(entry, e.SpecAdopted) for entry in drive.journal.withdraw()):
        drive.adopting, drive.place = False, 0
    return refusing(word_of(drive), drive.token)
