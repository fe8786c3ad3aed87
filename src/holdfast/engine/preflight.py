"""What new code would make of the runs that are under way: each is rehearsed, nothing is performed or written."""

import asyncio
import threading
from ast import literal_eval
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from holdfast.core.checksum import Share, StoredEntry
from holdfast.core.cursor import START, Cursor
from holdfast.core.divergence import told
from holdfast.core.entry import RunStarted, SpecAdopted, read_entry
from holdfast.core.errors import Diverged, HoldfastError, NotFound, UnknownEntry
from holdfast.core.ids import CHECKPOINT_NAME, RunId
from holdfast.core.post import CANCEL
from holdfast.core.status import Status
from holdfast.core.version import Need, Served
from holdfast.engine.app import App
from holdfast.engine.function import Durable
from holdfast.engine.payload import Secrets, message_of
from holdfast.engine.rehearsal import Finished, Rehearsed, rehearse_here
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow

_PAGE: Final = 100
_SECONDS: Final = 60.0
"""How long the code of one run may take to come to the end of what is recorded."""
_SAYS_CODE: Final = (RunStarted.__name__, SpecAdopted.__name__)
T = TypeVar("T")


class Verdict(StrEnum):
    """What becomes of a run when the code is deployed."""

    GOES_ON = "goes_on"
    """It is followed to the end of what is recorded, and goes on from there."""
    REFUSED = "refused"
    """The code asks for something other than what is recorded: the run would rest as diverged."""
    PINNED = "pinned"
    """It stays with workers of the version that it was started with."""
    OUTDATED = "outdated"
    """A later version has it already: this one would not be given it."""
    UNSERVED = "unserved"
    """The program does not have the function: the run waits for a worker that does."""
    UNREADABLE = "unreadable"
    """It is damaged, or written by a newer Holdfast; no code can follow it."""
    UNCLEAR = "unclear"
    """The code waits for something outside of the run, or does not come to an end: nobody can tell."""


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of one run."""

    run: str
    name: str
    key: str | None
    status: Status
    verdict: Verdict
    code: str
    """The version that the run was started with."""
    seq: int | None = None
    recorded: str | None = None
    asked: str | None = None
    """Recorded against asked, where the code diverges."""
    next: str | None = None
    """The step that the code would come to next."""
    detail: str = ""


async def preflight(store: Store, app: App, *, tenant: str, name: str | None = None) -> AsyncIterator[Preflight]:
    """Yield what would become of every open run, newest first; one at a time is held in memory."""
    judge = _Judge(store, app)
    before: RunId | None = None
    while rows := await store.list(RunFilter(open=True, name=name, before=before, limit=_PAGE)):
        for row in rows:
            if (row.tenant == tenant or row.damage) and row.name != CHECKPOINT_NAME:
                found = await judge.look(row)
                if found is not None:
                    yield found
        if before is not None and rows[-1].run >= before:
            return  # a row that has lost its id has no place in the order, and would come again and again
        before = rows[-1].run


class _Judge:
    """One program, and the store whose runs it might drive."""

    def __init__(self, store: Store, app: App) -> None:
        self._store, self._app = store, app
        self._secrets = Secrets(app.secrets)
        self._places: dict[tuple[str, str], int] = {}
        self._looked: set[str] = set()

    async def look(self, row: RunRow) -> Preflight | None:
        """Return what would become of a run; None for one that was deleted meanwhile."""
        try:
            return _verdict(row, **await self._judge(row))
        except NotFound:
            return None
        except HoldfastError as error:
            return _verdict(row, verdict=Verdict.UNREADABLE, detail=f"{error.code}: {error}")

    async def _judge(self, row: RunRow) -> dict[str, Any]:
        if row.damage:
            return {"verdict": Verdict.UNREADABLE, "detail": f"damaged: {row.damage}"}
        function = self._app.get(row.name)
        if function is None:
            return {"verdict": Verdict.UNSERVED, "detail": f"the program has no {row.name!r}"}
        if row.is_controlled and any(post.kind == CANCEL for post in await self._store.inbox(row.run)):
            return {"verdict": Verdict.GOES_ON, "detail": "its end was asked for"}
        others = await self._is_others(row, function)
        if others:
            return others
        entries, shares = await self._entries(row.run)
        if not entries:
            raise NotFound(f"run {row.run}")
        blobs = _Blobs(self._store, row.tenant, asyncio.get_running_loop())
        try:
            rehearsed = await _aside(
                lambda: rehearse_here(function, row.run, entries, blobs=blobs, secrets=self._secrets, shares=shares)
            )
        except UnknownEntry:
            raise
        except TimeoutError as error:
            return {"verdict": Verdict.UNCLEAR, "detail": message_of(error)}
        return _said(rehearsed, same=_code_of(row.run, entries) == self._app.code(function))

    async def _is_others(self, row: RunRow, function: Durable[Any, ...]) -> dict[str, Any] | None:
        """Say why a run would not be given to this program; None where it would."""
        code, need = self._app.code(function), Need.read(row.refused)
        if row.pin and row.code != code:
            return {"verdict": Verdict.PINNED, "detail": f"it stays with workers of version {row.code}"}
        token = self._app.token(function)
        if token in need.refused:
            return {"verdict": Verdict.REFUSED, "detail": row.reason or f"version {code} refused it before"}
        place = await self._place(row.name, code)
        if not need.admits(Served(token, code=code, place=place)):
            known = next((of for (name, of), at in self._places.items() if at == need.at_least), "that is later")
            return {"verdict": Verdict.OUTDATED, "detail": f"version {known} has it, and came after {code}"}
        return None

    async def _place(self, name: str, code: str) -> int | None:
        """Return the place that a version has; None for a new one, which will be the last."""
        if name not in self._looked:
            self._looked.add(name)
            self._places |= {(name, version.code): version.place for version in await self._store.versions(name)}
        return self._places.get((name, code))

    async def _entries(self, run: RunId) -> tuple[list[StoredEntry], Sequence[Share]]:
        entries: list[StoredEntry] = []
        shares: Sequence[Share] = ()
        cursor, more = START, True
        while more:
            page = await self._store.read(run, cursor, chunks=False)
            entries += page.entries
            shares = page.shares
            cursor, more = Cursor(cursor.seq + len(page.entries)), page.more
        return entries, shares


class _Blobs(Mapping[str, bytes]):
    """The blobs of a tenant, read when the code comes to them: by its thread, from the store's."""

    def __init__(self, store: Store, tenant: str, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._tenant, self._loop = store, tenant, loop

    def __getitem__(self, digest: str) -> bytes:
        try:
            return asyncio.run_coroutine_threadsafe(self._store.blob(self._tenant, digest), self._loop).result()
        except NotFound:
            raise KeyError(digest) from None

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


async def _aside(work: Callable[[], T]) -> T:
    """Call it on a thread that nobody waits for at the end, since it runs somebody's code.

    Raises:
        TimeoutError: it takes too long.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            # A future takes any but this one.
            error = RuntimeError(str(raised)) if isinstance(raised, StopIteration) else raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="holdfast preflight", daemon=True).start()
    try:
        async with asyncio.timeout(_SECONDS):
            return await done
    except TimeoutError as error:
        if done.done():
            raise
        raise TimeoutError(f"its code did not come to the end of what is recorded within {_SECONDS:g} s") from error


def _code_of(run: RunId, entries: Sequence[StoredEntry]) -> str:
    """Return the version that has a run, by its journal."""
    code = ""
    for stored in entries:
        if stored.kind in _SAYS_CODE:
            entry = read_entry(run, stored)
            assert isinstance(entry, RunStarted | SpecAdopted)
            code = entry.code
    return code


def _said(rehearsed: Rehearsed, *, same: bool) -> dict[str, Any]:
    if isinstance(rehearsed, Diverged):
        where = {"seq": rehearsed.seq, "recorded": _bare(rehearsed.recorded), "asked": _bare(rehearsed.asked)}
        return {"verdict": Verdict.REFUSED, "detail": told(rehearsed, same=same), **where}
    if isinstance(rehearsed, Finished):
        return {"verdict": Verdict.GOES_ON, "detail": f"it would end: {rehearsed.ending.status}"}
    return {"verdict": Verdict.GOES_ON, "next": rehearsed.step}


def _bare(told: str) -> str:
    """Return a step key without the quotes that it has in a sentence; a sentence as it is."""
    with suppress(ValueError, SyntaxError):
        key = literal_eval(told)
        return key if isinstance(key, str) else told
    return told


def _verdict(row: RunRow, **found: Any) -> Preflight:
    status = Status.RUNNING if row.owner is not None else row.status
    return Preflight(run=row.run, name=row.name, key=row.key, status=status, code=row.code, **found)
