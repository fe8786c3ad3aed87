"""The runs of a worker that drives one tree and nothing else: those it was given, and the children that it hears of."""

from collections.abc import Iterable
from uuid import uuid4

import msgspec

from holdfast.core.ids import RunId
from holdfast.core.post import RETRY, Control
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import NewPost


class Narrow:
    """Some runs, each roused once if it rests for a child that this process may have no code for yet."""

    def __init__(self, store: Store, runs: Iterable[RunId]) -> None:
        self._store = store
        self.runs = set(runs)
        self._strange = set(self.runs)
        """Runs that were not looked at yet."""

    def add(self, run: RunId) -> None:
        """Take one more."""
        if run not in self.runs:
            self.runs.add(run)
            self._strange.add(run)

    async def rouse(self) -> None:
        """Let parents at rest look again: only their own code tells which children they have, and with what code."""
        while self._strange:
            run = self._strange.pop()
            row = await self._store.get(run)
            rests = row is not None and row.status is Status.WAITING and row.owner is None
            if row is None or not rests or not row.reason.startswith("child") or row.inbox_seq > row.seen_seq:
                continue
            body = msgspec.json.encode(Control("holdfast"))
            await self._store.post(NewPost(run=run, kind=RETRY, key=f"{RETRY}/{uuid4()}", body=body, control=True))
