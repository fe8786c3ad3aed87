"""All that is told of runs: of one everything, of many a line each."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.client.protocol import ForkInfo, RunInfo, RunSummary
from holdfast.client.reading import read_at, read_value
from holdfast.client.serving import Lacking, Serving
from holdfast.client.standing import as_time, summary_fields
from holdfast.core.budget import DEADLINE, NANO, USD, Account
from holdfast.core.entry import Entry, RunFinished, RunStarted
from holdfast.core.errors import Damaged, StoreRefused, UnknownEntry
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.store.fork import RETRY
from holdfast.store.protocol import Store
from holdfast.store.value import Forked, RunRow


async def tell_run(store: Store, row: RunRow, lacking: Lacking | None) -> RunInfo:
    """Return all that is told of a run.

    Raises:
        Damaged: the ending of a run that has one cannot be believed.
        UnknownEntry: this version cannot read it.
    """
    try:
        started = await read_at(store, row, 1)
        last = await read_at(store, row, row.last_seq) if not row.damage and row.last_seq > 1 else None
    except (Damaged, UnknownEntry):
        # Of a run that rests or goes on the row still tells; a result that cannot be read must not become none.
        if row.status.terminal:
            raise
        started = last = None
    finished = last if isinstance(last, RunFinished) else None
    begins, forks = await _kin(store, row.run)
    completed = finished is not None and finished.status is Status.COMPLETED
    known = summary_fields(row, lacking)
    return RunInfo(
        **known,
        input=await read_value(store, row, started) if isinstance(started, RunStarted) else None,
        result=await read_value(store, row, finished) if completed else None,
        error=msgspec.to_builtins(finished.error) if finished and finished.error else None,
        waiting_for=known["reason"] or None if lacking or row.status is Status.WAITING else None,
        base=begins.base if begins is not None else None,
        base_seq=begins.at if begins is not None else None,
        forks=forks,
        budget=await _budget(store, row, started),
    )


async def tell_runs(store: Store, rows: Sequence[RunRow], serving: Serving | None) -> Sequence[RunSummary]:
    """Return a line of each of these runs."""
    begins: Mapping[RunId, Forked] = {}
    with suppress(StoreRefused):  # damage that hides what is a fork must not hide the runs
        begins = await store.forks([row.run for row in rows])
    lacking = {row.run: await serving.lacking(store, row) for row in rows} if serving is not None else {}
    return [
        RunSummary(
            **summary_fields(row, lacking.get(row.run)),
            base=begun.base if begun else None,
            base_seq=begun.at if begun else None,
            due_at=as_time(row.due_at) if row.due_at is not None and row.owner is None else None,
        )
        for row in rows
        for begun in [begins.get(row.run)]
    ]


async def _kin(store: Store, run: RunId) -> tuple[Forked | None, Sequence[ForkInfo]]:
    """Return where a fork begins, and the forks of a run; where damage hides that, the rest is still told."""
    try:
        begins, forks = await store.forks([run]), await store.forked(run)
    except StoreRefused:
        return None, ()
    return begins.get(run), [ForkInfo(id=fork, at=begun.at, retry=begun.word == RETRY) for fork, begun in forks.items()]


async def _budget(store: Store, row: RunRow, started: Entry | None) -> dict[str, Any] | None:
    """Return a run's accounts; one without a budget costs no look."""
    if not isinstance(started, RunStarted) or started.budget is None:
        return None
    return {
        channel: as_time(account.total) if channel == DEADLINE else _account(channel, account)
        for channel, account in (await store.budget(row.run)).items()
    } or None


def _account(channel: str, account: Account) -> dict[str, Any]:
    """Return one channel's sums, money in dollars; `unknown` is there only where something was spent uncounted."""
    sums: dict[str, Any] = {
        "total": account.total, "free": account.free, "reserved": account.reserved, "spent": account.spent
    }  # fmt: skip
    if channel == USD:
        sums = {name: nano / NANO for name, nano in sums.items()}
    return {**sums, "unknown": True} if account.unknown else sums
