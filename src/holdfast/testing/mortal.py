"""A life that ends between two instructions, in a process that goes on: a loop that dies, and a store that ends it."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NoReturn

from holdfast.core.ids import RunId, WorkerId
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Pending, Transaction
from holdfast.store.value import Commit, Lease, Outcome

_UNWIND_SECONDS: Final = 1.0
_CANCELLATIONS: Final = 5


class MortalLoop(asyncio.SelectorEventLoop):
    """An event loop that can die: until it is buried nothing that it had to do is done, and no `finally` block runs."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = False
        self._left: list[tuple[Any, Sequence[Any]]] = []
        self._life: asyncio.Task[None] | None = None

    def live(self, life: Coroutine[Any, Any, None]) -> None:
        """Run `life` to its end or its death; what it raises is raised here."""
        self._life = self.create_task(life)
        self._life.add_done_callback(self._over)
        self.run_forever()
        self._life.remove_done_callback(self._over)
        if not self.dead:
            self._life.result()

    def _over(self, life: asyncio.Task[None]) -> None:
        self.stop()

    def die(self) -> None:
        """Let the callback that runs now be the last."""
        self.dead = True
        self.stop()

    def bury(self) -> None:
        """Let what the dead left unwind, so that nothing of it stays: now that all is judged, nobody looks."""
        if self.dead:
            self.stop()
            self.run_forever()  # whatever is ready is put by: nothing may go on before it is cancelled
            self.dead = False
            self.set_exception_handler(lambda loop, context: None)
            self.run_until_complete(self._unwind())
        self.close()

    async def _unwind(self) -> None:
        life, left = self._life, self._left
        assert life is not None
        # The life first: it tells its runtime to stop, so that no code of a run can act while it is left.
        life.cancel()
        self._resume([each for each in left if getattr(each[0], "__self__", None) is life])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task(), life}
        for task in tasks:
            task.cancel()
        self._resume([each for each in left if getattr(each[0], "__self__", None) is not life])
        for _ in range(_CANCELLATIONS):
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if not tasks:
                return
            _, deaf = await asyncio.wait(tasks, timeout=_UNWIND_SECONDS)
            for task in deaf:
                task.cancel()

    def _resume(self, callbacks: Sequence[tuple[Any, Sequence[Any]]]) -> None:
        for callback, args in callbacks:
            self.call_soon(callback, *args)

    def _unless_dead(self, callback: Callable[..., object], *args: Any) -> None:
        if self.dead:
            self._left.append((callback, args))
        else:
            callback(*args)

    # Everything that resumes a task comes through one of these.

    def call_soon(  # type: ignore[override] # the arguments' types are the callback's own
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return super().call_soon(self._unless_dead, callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override] # the same
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._unless_dead, callback, *args, context=context)

    def call_at(  # type: ignore[override] # the same
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._unless_dead, callback, *args, context=context)


class _Cut(Exception):
    """Rolls a transaction back that the process did not live to commit."""


class MortalStore:
    """A store in memory, as one process has it open: at the nth place around its writes the process dies.

    Places are counted from 1: before and after each commit, and after each claim that leased something.
    """

    def __init__(self, store: MemoryStore, loop: MortalLoop, die_at: int | None) -> None:
        self._store, self._loop, self._die_at = store, loop, die_at
        self._passed = 0
        self.died: str | None = None
        """Where it died."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        what = _said(lease, change)
        if self._dies(f"before {what}"):
            return self._loop.create_future()
        outcome = self._store.commit(lease, change)
        return self._loop.create_future() if self._dies(f"after {what}") else outcome

    async def transact(
        self, lease: Lease, work: Callable[[Transaction], Commit], *, deadline_seconds: float
    ) -> Outcome:
        said: list[str] = []

        def told(transaction: Transaction) -> Commit:
            change = work(transaction)
            said.append(_said(lease, change))
            if self._dies(f"before {said[-1]}"):
                raise _Cut
            return change

        try:
            outcome = await self._store.transact(lease, told, deadline_seconds=deadline_seconds)
        except _Cut:
            await self._never()
        if said and self._dies(f"after {said[-1]}"):
            await self._never()
        return outcome

    async def claim(
        self,
        worker: WorkerId,
        serves: Mapping[str, str],
        *,
        limit: int,
        runs: Sequence[RunId] | None = None,
        suspects: bool = True,
    ) -> Sequence[Lease]:
        leases = await self._store.claim(worker, serves, limit=limit, runs=runs, suspects=suspects)
        names = " and ".join(f"claim {lease.fence} of {lease.row.name}" for lease in leases)
        if leases and self._dies(f"after {names}"):
            await self._never()
        return leases

    def _dies(self, place: str) -> bool:
        """Pass a place; True when the process dies there, or is dead."""
        self._passed += 1
        if self._passed == self._die_at:
            self.died = place
            self._loop.die()
        return self.died is not None

    async def _never(self) -> NoReturn:
        await self._loop.create_future()
        raise AssertionError("the dead do not go on")


def _said(lease: Lease, change: Commit) -> str:
    """Return what a commit writes, for people."""
    if not change.entries:
        return f"a change of {lease.row.name}'s row"
    last = change.entries[-1]
    return f"entry {last.seq} of {lease.row.name}, {last.kind}"
