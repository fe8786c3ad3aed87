"""A run that tries a failed one again takes its children up where they were left, instead of starting them over."""

from typing import Final

from msgspec.structs import replace

from holdfast.core import entry as e
from holdfast.core.checksum import check_chain
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, UnknownEntry
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.engine.drive import Drive
from holdfast.store.fork import RETRY, Past
from holdfast.store.value import Created, Existing, NewBlob, NewFork, RunRow

_GONE: Final = "what it did before is not known, so that it is not begun again"


async def take_up(drive: Drive, spawned: e.ChildSpawned) -> RunId:
    """Return a child in the place of the one that a failed run spawned: it goes on from that one's past.

    One that completed after its parent had failed is taken as it is. One whose past is gone counts as failed: begun
    again, it might do what it had done.
    """
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
        made = await drive.answer(drive.store.fork(new))
        if isinstance(made, Created | Existing):
            child = made.row.run if isinstance(made, Created) else made.run
            await drive.write(replace(spawned, child=child))
            drive.children[spawned.step] = child
            return child


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
    blobs = []
    if ending.blob is not None:
        body = await drive.answer(drive.store.blob(row.tenant, ending.blob.digest))
        blobs.append(NewBlob(ending.blob.digest, body))
    settled = e.ChildSettled(
        step=spawned.step, child=row.run, status=ending.status, raw=ending.raw, blob=ending.blob
    )  # fmt: skip
    return await _settle(drive, spawned, settled, blobs)


async def _fail(drive: Drive, spawned: e.ChildSpawned, why: str) -> RunId:
    error = e.ErrorInfo(type="NotFound", message=f"run {spawned.child} cannot be gone on with: {why}; {_GONE}")
    settled = e.ChildSettled(step=spawned.step, child=spawned.child, status=Status.FAILED, error=error)
    return await _settle(drive, spawned, settled, [])


async def _settle(drive: Drive, spawned: e.ChildSpawned, settled: e.ChildSettled, blobs: list[NewBlob]) -> RunId:
    await drive.write(spawned, settled, blobs=blobs)
    drive.settled[spawned.step] = settled
    return RunId(settled.child)
