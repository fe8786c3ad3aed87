"""A run that tries a failed one again takes its children up where they were left, instead of starting them over."""

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from holdfast.core import entry as e
from holdfast.core.checksum import check_chain
from holdfast.core.cursor import Cursor
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, UnknownEntry
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.core.transcript import said_text
from holdfast.engine.drive import Drive
from holdfast.store.fork import RETRY, Past
from holdfast.store.value import Created, Existing, NewBlob, NewFork, RunRow

_GONE: Final = "what it did before is not known, so that it is not begun again"


async def take_up(drive: Drive, spawned: e.ChildSpawned) -> RunId:
    """Return a child in the place of the one that a failed run spawned: it goes on from that one's past.

    One that completed after its parent had failed is taken as it is. One whose past is gone counts as failed: begun
    again, it might do what it had done.

    What one that had settled gave back is given to it anew. For one that had not, the failed run was charged in full.
    """
    returned = await _returned(drive, spawned.step)
    while True:
        row = await drive.answer(drive.store.get(RunId(spawned.child)))
        try:
            if row is None or row.damage:
                return await _fail(drive, spawned, "it was deleted" if row is None else row.damage)
            if row.status is Status.COMPLETED:
                return await _adopt(drive, spawned, row)
            new = await _fork(drive, spawned.step, row)
        except (Damaged, UnknownEntry) as error:
            return await _fail(drive, spawned, str(error))
        # As much for every worker that comes here: one that died behind the fork has made it with this.
        left = {move.channel: move.total for move in new.budget}
        grant = {channel: min(back, left.get(channel, 0)) for channel, back in returned.items()}
        await _hold(drive, spawned, grant)
        made = await drive.answer(drive.store.fork(new))
        if isinstance(made, Created | Existing):
            child = made.row.run if isinstance(made, Created) else made.run
            entry = replace(spawned, child=child, grant=grant or None)
            await drive.write(entry, **drive.paid(entry))
            drive.children[spawned.step] = child
            return child
        if drive.purse is not None:
            drive.purse.release(grant)


async def _returned(drive: Drive, step: str) -> Mapping[str, int]:
    """Return what the child of a step gave back to the failed run, if it had settled there."""
    purse = drive.purse
    if purse is None:
        return {}
    if purse.returned is None:
        row = drive.lease.row
        past = await drive.answer(Past.read(drive.store, row, row.last_seq))
        purse.returned = past.history.returned
    return purse.counted(purse.returned.get(step, {}))


async def _hold(drive: Drive, spawned: e.ChildSpawned, grant: Mapping[str, int]) -> None:
    """Take what a child is given of this run's budget; the run rests as exhausted while there is not as much."""
    if drive.purse is None:
        return
    try:
        await drive.purse.hold(drive, spawned.step, grant)
    except asyncio.CancelledError:
        if not drive.unwinding:
            info = e.ErrorInfo(type="CancelledError", message="cancelled by the run's own code")
            drive.write_soon(e.StepFailed(step=spawned.step, digest=spawned.digest, error=info, cancelled=True))
        raise


async def _fork(drive: Drive, step: str, row: RunRow) -> NewFork:
    """Return the fork of a child; under a word, so that a worker who dies before it is recorded makes no second."""
    past = await drive.answer(Past.before_retry(drive.store, row))
    new, parent = past.forked(now=drive.store.now(), retry=True), drive.lease.row
    own = replace(new.row, key=None, conversation=None, parent=parent.run, root=parent.root or parent.run)
    return replace(new, row=own, word=f"{RETRY}/{parent.run}/{step}")


async def _adopt(drive: Drive, spawned: e.ChildSpawned, row: RunRow) -> RunId:
    page = await drive.answer(drive.store.last(row.run))
    if page is None or not page.entries:
        raise Damaged(run=row.run, seq=row.last_seq, what=f"entry {row.last_seq} is missing")
    check_chain(row.run, page.previous, page.entries, row.last_seq - 1, page.shares)
    ending = read_entry(row.run, page.entries[0])
    if not isinstance(ending, e.RunFinished):
        raise Damaged(run=row.run, seq=row.last_seq, what=f"the row says {row.status}, the journal {ending.type}")
    raw, blobs = ending.raw, []
    if ending.said is not None:
        raw = said_text(await _at(drive, row, ending.said))
    if ending.blob is not None:
        body = await drive.answer(drive.store.blob(row.tenant, ending.blob.digest))
        blobs.append(NewBlob(ending.blob.digest, body))
    settled = e.ChildSettled(
        step=spawned.step, child=row.run, status=ending.status, raw=raw, blob=ending.blob
    )  # fmt: skip
    return await _settle(drive, spawned, settled, blobs)


async def _at(drive: Drive, row: RunRow, seq: int) -> e.Entry:
    page = await drive.answer(drive.store.read(row.run, Cursor(seq - 1), chunks=False, limit=1))
    if not page.entries:
        raise Damaged(run=row.run, seq=seq, what=f"entry {seq} is missing")
    check_chain(row.run, page.previous, page.entries[:1], seq - 1, page.shares)
    return read_entry(row.run, page.entries[0])


async def _fail(drive: Drive, spawned: e.ChildSpawned, why: str) -> RunId:
    error = e.ErrorInfo(type="NotFound", message=f"run {spawned.child} cannot be gone on with: {why}; {_GONE}")
    settled = e.ChildSettled(step=spawned.step, child=spawned.child, status=Status.FAILED, error=error)
    return await _settle(drive, spawned, settled, [])


async def _settle(drive: Drive, spawned: e.ChildSpawned, settled: e.ChildSettled, blobs: list[NewBlob]) -> RunId:
    await drive.write(spawned, settled, blobs=blobs)
    drive.settled[spawned.step] = settled
    return RunId(settled.child)
