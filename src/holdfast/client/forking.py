"""Forking a run behind one of its entries, and retrying one that failed as such a fork."""

from contextlib import suppress
from typing import Final

from holdfast.client.serving import Lacking
from holdfast.client.standing import STUCK, status_of
from holdfast.core.errors import Conflict, Damaged, InvalidInput, NotFound
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.store.fork import Past
from holdfast.store.protocol import Store
from holdfast.store.value import Created, Existing, NewFork, RunRow

_FORK: Final = "`holdfast fork RUN` begins another run from any of its entries."


async def fork_run(store: Store, row: RunRow, at: int | None, *, by: str | None = None) -> RunId:
    """Create a fork of a run behind entry `at`, or behind its last one that is not of its end; return its id.

    Raises:
        InvalidInput: there is no such entry, or it belongs to the run's end.
    """
    if at is None:
        past = await Past.before_end(store, row)
    else:
        _check_place(row, at)
        past = await Past.read(store, row, at)
        if asked := past.history.cancel_seq:
            raise _wrong(
                f"the end of run {row.run} was asked for in its entry {asked:,}, and entry {at:,} is not before that",
                f"Fork it at entry {asked - 1:,} or before.",
            )
    return await _create(store, row, past.forked(now=store.now(), by=by))


async def retry_run(store: Store, row: RunRow, *, by: str | None = None) -> RunId:
    """Create the fork that tries a failed run again, or find the one that somebody else created; return its id.

    Raises:
        Conflict: it has not failed; or it was tried again before, and that run did not complete either.
    """
    if row.status is not Status.FAILED:
        raise Conflict(f"run {row.run} had ended before: {row.status}", run=row.run, hint=f"Nothing failed. {_FORK}")
    past = await Past.before_retry(store, row)
    return await _create(store, row, past.forked(now=store.now(), retry=True, by=by))


def check_stuck(row: RunRow, lacking: Lacking | None) -> None:
    """Refuse to try a run again that has not ended and needs no try: it goes on by itself, or wants something else.

    Raises:
        Conflict: what it wants is said.
    """
    run = row.run
    if row.status is Status.EXHAUSTED:
        hint = f"`holdfast raise {run}` adds to its budget, and it goes on."
        raise Conflict(f"run {run} has used up its budget: {row.reason}", run=run, hint=hint)
    stuck = row.status is Status.QUARANTINED or row.reason.startswith(STUCK)
    if lacking is not None and lacking.unserved and not stuck:
        raise Conflict(
            f"run {run} waits for its code: no worker serves {row.name!r}", run=run,
            hint="Start a worker that does; the run goes on at once.",
        )  # fmt: skip
    if row.owner is not None or not (stuck or lacking):
        raise Conflict(f"run {run} is {status_of(row)} and goes on by itself", run=run, hint="Nothing is to be done.")


async def check_turn(store: Store, row: RunRow) -> None:
    """Refuse to try a turn again that was set aside and cannot return to its place.

    Raises:
        Conflict: a later turn has gone on without it.
    """
    if row.status is not Status.QUARANTINED or row.conversation is None or row.turn is None:
        return
    known = None
    with suppress(Damaged):  # its metadata, which holds nobody up
        known = await store.conversation(row.tenant, row.conversation)
    if known is not None and known.reached > row.turn:
        raise Conflict(
            f"run {row.run} is turn {row.turn:,} of a conversation, and a later one has gone on without it",
            run=row.run, hint=f"`holdfast cancel {row.run}` ends it. {_FORK}",
        )  # fmt: skip


def _check_place(row: RunRow, at: int) -> None:
    if isinstance(at, bool) or not isinstance(at, int) or at < 1:
        raise _wrong(
            f"at= is the number of an entry, from 1, not {at!r}", "Without a number it is forked at the last one."
        )
    if at > row.last_seq:
        raise _wrong(
            f"run {row.run} has {row.last_seq:,} entries, so that it cannot be forked at entry {at:,}",
            "`holdfast tail RUN --no-follow` lists them; without a number it is forked at the last one.",
        )
    if at == row.last_seq and row.status.terminal:
        raise _wrong(
            f"entry {at:,} of run {row.run} is its ending, behind which nothing follows",
            f"Fork it at entry {at - 1:,} or before.",
        )


def _wrong(what: str, hint: str) -> InvalidInput:
    error = InvalidInput(what)
    error.hint = hint
    return error


async def _create(store: Store, base: RunRow, new: NewFork) -> RunId:
    match await store.fork(new):
        case Created(row=row):
            return row.run
        case Existing(run=run, row=row):
            if row is not None and row.status in (Status.FAILED, Status.CANCELLED):
                raise Conflict(
                    f"run {base.run} was tried again as run {run}, which has ended: {row.status}",
                    run=run,
                    hint=f"Go on from that one: `holdfast show {run}`.",
                )
            return run
        case _:
            if await store.get(base.run) is None:
                raise NotFound(f"run {base.run}")
            raise Damaged(run=base.run, seq=new.first.seq - 1, what="it is not the entry that was read before")
