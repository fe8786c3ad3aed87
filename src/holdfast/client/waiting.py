"""Waiting for a run until it has ended, or rests where only somebody else can help."""

import asyncio
from typing import Final

import msgspec

from holdfast.client.held import held_by
from holdfast.client.protocol import Ending
from holdfast.client.reading import read_finished, read_result
from holdfast.client.serving import Here, could_go_on
from holdfast.client.standing import STUCK, UNREADABLE, own, reason_of, status_of, waits_for_person
from holdfast.core.errors import NotFound
from holdfast.core.ids import RunId, run_id
from holdfast.core.status import Status
from holdfast.core.version import admits
from holdfast.store.protocol import Store
from holdfast.store.value import Page, RunRow

_LOOK_SECONDS: Final = 1.0


class Waiting:
    """How runs of one tenant are waited for."""

    def __init__(self, store: Store, here: Here, tenant: str) -> None:
        self._store, self._here, self._tenant = store, here, tenant

    async def until_rest(self, run: RunId, *, timeout_seconds: float | None, or_person: bool) -> Ending:
        """Return when the run has ended or rests where only other code can help; `or_person` also where a person can.

        Raises:
            TimeoutError: the time is over.
        """
        give_up = asyncio.get_running_loop().time() + timeout_seconds if timeout_seconds is not None else None
        bell = self._store.watch(run_id(run), entries=False)
        page = None
        try:
            while True:
                page = page or await self._store.last(run)
                if page is None:
                    raise NotFound(f"run {run}")
                ending = await self._look(run, page, or_person)
                if ending is not None:
                    return ending
                left = _LOOK_SECONDS
                if give_up is not None:
                    left = min(left, give_up - asyncio.get_running_loop().time())
                    if left <= 0:
                        raise TimeoutError(f"run {run} has not ended after {timeout_seconds:g} s; it goes on")
                page = await bell.wait(left)
        finally:
            bell.close()

    async def _look(self, run: RunId, page: Page, or_person: bool) -> Ending | None:
        """Return how a run has ended, or why it rests; None where it may go on by itself."""
        row = own(page.row, run, self._tenant)
        if self._at_rest(row) or (or_person and waits_for_person(row)):
            return await self._ending(page)
        if (why := await self._stuck(row)) is not None:
            return Ending(status=Status.WAITING, reason=why)
        if or_person and (held := await held_by(self._store, row, self._needs_help)) is not None:
            reason = f"child: {held.name} {held.run}: {reason_of(held)}"
            return Ending(status=status_of(row), reason=reason, held_by=held.run)
        if (refused := self._here.refusal(run)) is not None:
            raise refused
        return None

    def _at_rest(self, row: RunRow) -> bool:
        if row.damage or row.status.terminal:
            return True
        if row.status in (Status.QUARANTINED, Status.EXHAUSTED):
            return not row.is_controlled
        stuck = row.status is Status.WAITING and row.owner is None and row.reason.startswith(UNREADABLE)
        served = self._here.serves().get(row.name)
        return stuck and (served is None or row.due_at is None or not admits(row.refused, served))

    def _needs_help(self, row: RunRow) -> bool:
        return self._at_rest(row) or waits_for_person(row)

    async def _stuck(self, row: RunRow) -> str | None:
        """Say why a run rests where only other code can help; None where somebody who is there may still drive it."""
        if not row.refused or not could_go_on(row, self._store.now()):
            return None
        lacking = await self._here.lacking(row)
        if lacking is None or (lacking.unserved and not row.reason.startswith(STUCK)):
            return None
        return row.reason if row.reason.startswith(STUCK) else lacking.reason

    async def _ending(self, page: Page) -> Ending:
        row = page.row
        status, reason = status_of(row), reason_of(row)
        if row.damage or not row.status.terminal:
            return Ending(status=status, reason=reason)
        last = read_finished(page)
        value = await read_result(self._store, row, last)
        error = msgspec.to_builtins(last.error) if last.error is not None else None
        return Ending(status=status, reason=reason or str(status), value=value, error=error)
