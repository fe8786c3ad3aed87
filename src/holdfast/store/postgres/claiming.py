"""Claiming on PostgreSQL: look at what is due, set aside what cannot be driven, and take what is still as it was."""

import asyncio
import random
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.core.checksum import StoredEntry
from holdfast.core.ids import RunId, WorkerId
from holdfast.store import stalling
from holdfast.store.postgres import conversing, leasing
from holdfast.store.postgres.clock import ServerClock
from holdfast.store.postgres.gathering import BY_ID, by_id
from holdfast.store.postgres.reading import Reader
from holdfast.store.rows import read_row
from holdfast.store.value import Lease, RunRow


class Claims:
    """One process's claims, one at a time."""

    def __init__(self, reader: Reader, clock: ServerClock) -> None:
        self._reader, self._clock = reader, clock
        self._one = asyncio.Lock()

    async def take(
        self, worker: WorkerId, serves: Mapping[str, str], *, limit: int, runs: Sequence[RunId] | None, suspects: bool
    ) -> list[Lease]:
        """Lease up to `limit` runs that are due; of suspects at most one."""
        leases: list[Lease] = []
        # One at a time in a process, and again where a neighbour was quicker.
        async with self._one:
            for _ in range(4):
                rows = await self._candidates(serves, limit - len(leases), runs, suspects)
                sound = await self._at_their_turn(await self._set_aside(rows))
                if not sound:
                    break
                suspects = suspects and not any(row.stalls for row in sound)
                taken = await self._claim(worker, sound)
                leases += taken
                if len(taken) == len(sound) or len(leases) >= limit:
                    break
        return leases

    async def _candidates(
        self, serves: Mapping[str, str], limit: int, runs: Sequence[RunId] | None, suspects: bool
    ) -> list[tuple[RunRow, int]]:
        """Return what may be claimed, with its stored CRC: what is due, the longest first, then what a post wakes."""
        if runs is not None:
            if await self._reader.rows(f"SELECT 1 WHERE {conversing.CALLS}"):
                await self._reader.rows(conversing.CALL, [conversing.CALLED])
            rows = [(read_row(row), row[-3]) for row in await self._reader.rows(BY_ID, by_id(runs))]
            order = {run: place for place, run in enumerate(runs)}
            now = await self._reader.look_at(self._clock)
            rows = [(row, stored) for row, stored in rows if leasing.may_claim(row, serves, now)]
            return sorted(rows, key=lambda item: order[item[0].run])[:limit]
        words = await self._reader.rows(leasing.WORDS, leasing.question(serves))
        admitted = leasing.Admitted(words, serves)
        if admitted.has("turns"):
            await self._reader.rows(conversing.CALL, [conversing.CALLED])
            admitted = leasing.Admitted(await self._reader.rows(leasing.WORDS, leasing.question(serves)), serves)
        found = await self._found(admitted, limit, suspicious=False)
        if suspects and len(found) < limit:
            found += await self._found(admitted, 1, suspicious=True)
        return found

    async def _found(self, admitted: leasing.Admitted, limit: int, *, suspicious: bool) -> list[tuple[RunRow, int]]:
        at_most = max(limit, leasing.ENOUGH)
        due: list[tuple[RunRow, int]] = []
        if suspicious and admitted.has("suspect"):
            asked = [*admitted.values("suspect"), True, self._clock.given, at_most]
            due = [(read_row(row), row[-3]) for row in await self._reader.rows(leasing.SUSPECT, asked)]
            # Any of the least suspicious, so that workers seldom want the same one.
            due = due and [random.choice([item for item in due if item[0].stalls == due[0][0].stalls])]
        elif not suspicious and admitted.has("due"):
            asked = [*admitted.values("due"), False, self._clock.given, at_most, random.randrange(leasing.BUCKETS)]
            due = [(read_row(row), row[-3]) for row in await self._reader.rows(leasing.DUE, asked)]
            due.sort(key=lambda item: (item[0].due_at or 0, item[0].run))
        if len(due) < limit:
            due += await self._woken(admitted, {row.number for row, _ in due}, suspicious, at_most)
        return due[:limit]

    async def _woken(
        self, admitted: leasing.Admitted, seen: set[int], suspicious: bool, at_most: int
    ) -> list[tuple[RunRow, int]]:
        """Return what a post wakes, and of what something was asked, but for what was found already."""
        rows = []
        if admitted.has("asked"):
            rows += await self._reader.rows(leasing.ASKED, [*admitted.names, suspicious, at_most])
        if admitted.has("posted"):
            rows += await self._reader.rows(leasing.POSTED, [*admitted.values("posted"), suspicious, at_most])
        found = {row[0]: (read_row(row), row[-3]) for row in rows if row[0] not in seen}
        return list(found.values())

    async def _set_aside(self, rows: Sequence[tuple[RunRow, int]]) -> list[RunRow]:
        """Take what is damaged, or never makes progress, out of the way; return the others."""
        sound: list[RunRow] = []
        for row, stored in rows:
            reason = f"damaged: {row.damage}" if row.damage else ""
            if not reason and row.is_hopeless:
                tail = await self._reader.rows(leasing.TAIL, [row.number, stalling.TAIL])
                reason = stalling.no_progress(row, [StoredEntry(*values) for values in reversed(tail)])
            if reason:
                await self._reader.rows(leasing.SET_ASIDE, leasing.aside_values(row, stored, reason))
            else:
                sound.append(row)
        return sound

    async def _at_their_turn(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """Return those whose turn it is, or has come again; and of the others those whose end was asked for."""
        found: list[RunRow] = []
        for row in rows:
            if row.behind:
                [(how,)] = await self._reader.rows(conversing.RETURN, [row.number])
                found += [replace(row, behind=how != "active")] if how is not None else []
            else:
                found.append(row)
        return found

    async def _claim(self, worker: WorkerId, rows: Sequence[RunRow]) -> list[Lease]:
        # Not asked again if the connection is lost: nobody would know which of them are whose.
        async with self._reader.connection() as connection:
            statement = self._reader.names(leasing.CLAIM)
            cursor = await connection.execute(statement, leasing.claim_values(worker, rows), binary=True)
            taken = {number: counters for number, *counters in await cursor.fetchall()}
        return [leasing.lease(row, worker, taken[row.number]) for row in rows if row.number in taken]
