"""Forking a run is writing an entry that names another's."""

import secrets
from collections.abc import Sequence
from typing import Final

from holdfast.core.checksum import Share, StoredEntry, checksum, owner_of
from holdfast.core.entry import RunForked, encode_body
from holdfast.core.fork import LooseEnds
from holdfast.core.ids import id_bytes, new_run_id
from holdfast.store.value import NewFork, RunRow

RETRY: Final = "retry"
"""The word that the retry of a failed run is asked for under."""


def new_fork(
    base: RunRow, last: StoredEntry, shares: Sequence[Share], loose: LooseEnds, *, now: int, retry: bool = False
) -> NewFork:
    """Return the row and the first own entry of a run that has the base's entries up to `last`.

    A retry takes the base's key and conversation with it; any other fork stands for itself.
    """
    run = new_run_id()
    entry = RunForked(
        base=owner_of(base.run, shares, last.seq),
        base_seq=last.seq,
        base_checksum=last.checksum.hex(),
        seed=secrets.token_hex(16),
        reopened=loose.reopened,
        doubted=loose.doubted,
        children=loose.children,
        questions=loose.questions,
    )
    seq, body = last.seq + 1, encode_body(entry)
    first = StoredEntry(
        seq, entry.type, entry.version, now, 0, body,
        checksum(id_bytes(run), seq, now, entry.version, entry.type, 0, last.checksum, body),
    )  # fmt: skip
    row = RunRow(
        run=run, number=0, tenant=base.tenant, name=base.name, digest=base.digest, created_at=now, updated_at=now,
        key=base.key if retry else None, code=base.code, pin=base.pin, labels=dict(base.labels), due_at=now,
        conversation=base.conversation if retry else None,
    )  # fmt: skip
    return NewFork(row=row, first=first, base=base.run, previous=last.checksum, word=RETRY if retry else None)
