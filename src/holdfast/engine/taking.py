"""Taking a checkpoint by its id: the life that is open, or a new one, under a lease that nobody else has."""

from collections.abc import Mapping
from typing import Final

from holdfast.core.checkpoint import CODE, checkpoint_key
from holdfast.core.codec import canonical
from holdfast.core.errors import Conflict, Damaged, RunError
from holdfast.core.ids import CHECKPOINT_NAME, TENANT
from holdfast.core.status import Status
from holdfast.engine.keeper import Keeper
from holdfast.store.protocol import Store
from holdfast.store.start import Start, new_run
from holdfast.store.value import Created, Existing, KeyTaken, Lease, NewRun, RunRow

_CLAIMS: Final = 3
"""How often a checkpoint that nobody has is asked for in vain."""


async def take(keeper: Keeper, checkpoint: str, labels: Mapping[str, str]) -> Lease:
    """Return the lease of a checkpoint: of the life that is open, else of a new one.

    Raises:
        CheckpointOwned: another loop has it open.
        Damaged: it is there and cannot be believed.
        RunError: it was set aside, and waits for a person.
    """
    await keeper.be_known()
    life, vain = max(await _last_life(keeper.store, checkpoint), 1), 0
    while True:
        match await keeper.create(_first(keeper.store, checkpoint, life, labels)):
            case Created(lease=Lease() as lease):
                return lease
            case Existing(row=RunRow() as row) if row.damage or not row.status.terminal:
                _refuse(row, vain)
                had = await _had(keeper, row, checkpoint)
                if had is not None:
                    return had
                vain += row.owner is None
            case Existing():
                life += 1
            case KeyTaken(run=run, differs=differs):
                message = f"the key of checkpoint {checkpoint!r} is that of run {run}, which is no checkpoint"
                raise Conflict(message, run=run, differs=differs, hint="Give the checkpoint another id.")
            case _:  # this process was declared dead meanwhile
                await keeper.look()
                await keeper.be_known()


def _first(store: Store, checkpoint: str, life: int, labels: Mapping[str, str]) -> NewRun:
    start = Start(
        name=CHECKPOINT_NAME,
        input=canonical({"checkpoint": checkpoint}),
        key=checkpoint_key(checkpoint, life),
        code=CODE,
        pin=True,
        labels=labels,
    )
    return new_run(start, tenant=TENANT, now=store.now())


async def _last_life(store: Store, checkpoint: str) -> int:
    """Return the number of the last life that a checkpoint has had; 0 for none. They have no gaps, so few are asked."""

    async def was(life: int) -> bool:
        return await store.holder(TENANT, checkpoint_key(checkpoint, life)) is not None

    known, step = 0, 1
    while await was(known + step):
        known += step
        step *= 2
    while step > 1:
        step //= 2
        if await was(known + step):
            known += step
    return known


def _refuse(row: RunRow, vain: int) -> None:
    """Refuse a checkpoint that must not be gone on with, or that was asked for in vain too often."""
    if row.damage:
        raise Damaged(run=row.run, seq=None, what=row.damage)
    if row.status is Status.QUARANTINED and not row.is_controlled:
        refused = RunError(run=row.run, status=row.status, reason=row.reason)
        refused.hint = f"`holdfast retry {row.run}` lets it be opened again; `holdfast cancel {row.run}` ends it."
        raise refused
    if vain == _CLAIMS:
        raise RunError(run=row.run, status=row.status, reason=row.reason or "nobody has it, and it cannot be claimed")


async def _had(keeper: Keeper, row: RunRow, checkpoint: str) -> Lease | None:
    """Return the lease of a checkpoint that nobody has; of one that somebody has, once he is dead."""
    ours = row.owner == keeper.id and row.run not in keeper.open
    if row.owner is None or ours:
        return await keeper.claim(row)
    if await keeper.has_owner(row):
        raise keeper.refusal(row, checkpoint, await keeper.owner(row))
    return None
