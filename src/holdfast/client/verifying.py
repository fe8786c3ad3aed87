"""Reading a store again, run by run, to name what does not add up."""

from collections.abc import AsyncIterator, Callable, Sequence

from holdfast.client.protocol import Finding
from holdfast.client.reading import blobs_of, read_blob
from holdfast.core.checksum import ZERO, check_chain
from holdfast.core.cursor import START, Cursor
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, NotFound, StoreError, StoreRefused
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow


async def verify_store(store: Store, *, seen: Callable[[RunId], None] | None = None) -> AsyncIterator[Finding]:
    """Yield what is wrong with a store, and with each of its runs; each is `seen` once it was looked at."""
    try:
        for what in await store.check():
            yield Finding(run=None, seq=None, what=what)
    except StoreRefused as error:
        yield Finding(run=None, seq=None, what=str(error))
        return
    before: RunId | None = None
    while rows := await store.list(RunFilter(before=before, limit=100)):
        for row in rows:
            for finding in await verify_run(store, row):
                yield finding
            if seen is not None:
                seen(row.run)
        if before is not None and rows[-1].run >= before:
            return  # a row that has lost its id has no place in the order, and would come again and again
        before = rows[-1].run


async def verify_run(store: Store, row: RunRow) -> Sequence[Finding]:
    """Return what is wrong with a run: its row, its chain, the order of its entries, its blobs and its inbox."""
    found = await _look(store, row)
    if found is not None and row.status.terminal and await store.get(row.run) is None:
        return []  # it was deleted meanwhile
    return [found] if found is not None else []


async def _look(store: Store, row: RunRow) -> Finding | None:
    if row.damage:
        return Finding(run=row.run, seq=None, what=row.damage)
    state, head, cursor = RunState(), ZERO, START
    try:
        while True:
            page = await store.read(row.run, cursor, chunks=False)
            head = check_chain(row.run, head, page.entries, cursor.seq, page.shares)
            for stored in page.entries:
                entry = read_entry(row.run, stored)
                state = fold(state, entry)
                for digest in blobs_of(entry):
                    await read_blob(store, row, stored.seq, digest)
            cursor = Cursor(cursor.seq + len(page.entries))
            if not page.more:
                break
        row = page.row
        if (row.last_seq, row.head) != (cursor.seq, head):
            raise Damaged(run=row.run, seq=cursor.seq + 1, what=f"the row says {row.last_seq} entries")
        if row.owner is None and state.status is not row.status and not _aside(row, state):
            raise Damaged(run=row.run, seq=None, what=f"the row says {row.status}, the journal {state.status}")
        await store.inbox(row.run)
        await _check_budget(store, row, state)
    except Damaged as error:
        return Finding(run=row.run, seq=error.seq, what=error.what_is_wrong)
    except (StoreError, NotFound) as error:
        return Finding(run=row.run, seq=cursor.seq + 1, what=str(error))
    return None


async def _check_budget(store: Store, row: RunRow, state: RunState) -> None:
    """Refuse accounts that are not what the journal says was given and spent; of a run under way the next look tells.

    Raises:
        Damaged: something was spent twice, or never, or is below nothing.
    """
    wrong = [channel for channel, account in state.accounts.items() if not account.is_sound(channel)]
    if wrong:
        raise Damaged(run=row.run, seq=None, what=f"more than all of its {wrong[0]} was spent")
    if row.owner is None and await store.budget(row.run) != state.accounts:
        now = await store.get(row.run)
        if now is not None and now.last_seq == row.last_seq:
            raise Damaged(run=row.run, seq=None, what="its accounts are not what its journal spent")


def _aside(row: RunRow, state: RunState) -> bool:
    """Say whether the row may say otherwise: a run is set aside without touching its journal, and taken up without
    touching its status, which tells where it rested last until it rests again."""
    return (
        row.status is Status.QUARANTINED
        or row.reason.startswith("unknown_entry")
        or (state.finished is None and (row.status is Status.QUEUED))
        or (state.status is Status.QUEUED and not row.status.terminal)
    )
