"""Branches: parts of a run's code that go on beside each other, each with its own place in the journal."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Any, Final

from holdfast.core.errors import Diverged, InvalidInput, Unwind
from holdfast.core.stepkey import branch_path, counted_key, explicit_key, set_path
from holdfast.engine.drive import Drive
from holdfast.engine.payload import is_failure, raised

AT_ONCE: Final = 64
"""How many branches of a map go on beside each other if nothing is said."""
_PATH_BYTES: Final = 512
Call = Callable[[], Coroutine[Any, Any, Any]]
Errors = dict[int, BaseException]
"""What branches raised, by their place."""


class Branch:
    """One branch: its path, and how far its code has come."""

    __slots__ = ("busy", "counts", "past", "path", "random", "seed")

    def __init__(self, path: str) -> None:
        self.path = path
        self.counts: dict[str, int] = {}
        self.busy = False
        self.past = False
        """True once the branch's last record was passed: everything after it is fresh."""
        self.random: Random | None = None
        self.seed = ""

    def count(self, name: str) -> int:
        """Return the how-manieth of its name this is."""
        nth = self.counts[name] = self.counts.get(name, 0) + 1
        return nth

    def next_set(self, name: str) -> str:
        """Return the place that the next set of branches takes."""
        return set_path(self.path, name, self.counts.get(name, 0) + 1)

    def key(self, name: str, key: str | None) -> str:
        """Return the step key of what is asked next, by its author's key or by counting.

        Raises:
            InvalidInput: there is neither, or the key was used before.
        """
        if key is not None:
            step_key = explicit_key(self.path, key)
            if step_key in self.counts:
                raise InvalidInput(f"step key {key!r} was used before in this run")
            self.counts[step_key] = 1
            return step_key
        if not name:
            raise InvalidInput("a lambda has no name that stays: give the step a key=")
        return counted_key(self.path, name, self.count(name))


class Branches:
    """The tasks that a context started, and the branch that each of them is in."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self.of: dict[asyncio.Task[Any], Branch] = {}

    async def gather(self, parent: Branch, codes: Sequence[Awaitable[Any]]) -> tuple[list[Any], Errors]:
        """Let all go on beside each other; return what each returned and raised, by place, when all have ended."""
        branch_set = _next_set(parent, "gather")
        paths = [branch_path(branch_set, place) for place in range(1, len(codes) + 1)]
        return await self._go(branch_set, paths, [_given(code) for code in codes], len(codes))

    async def each(self, parent: Branch, calls: Sequence[Call], at_once: int) -> tuple[list[Any], Errors]:
        """Let a bounded number of those that would be gathered go on at a time."""
        branch_set = _next_set(parent, "gather")
        paths = [branch_path(branch_set, place) for place in range(1, len(calls) + 1)]
        return await self._go(branch_set, paths, calls, at_once)

    async def map(
        self, parent: Branch, calls: Sequence[Call], keys: Sequence[str] | None, at_once: int
    ) -> tuple[list[Any], Errors]:
        """Let a bounded number go on at a time; return what each returned and raised, by place."""
        branch_set = _next_set(parent, "map")
        places: Sequence[int | str] = keys if keys is not None else range(1, len(calls) + 1)
        return await self._go(branch_set, [branch_path(branch_set, place) for place in places], calls, at_once)

    async def _go(
        self, branch_set: str, paths: Sequence[str], calls: Sequence[Call], at_once: int
    ) -> tuple[list[Any], Errors]:
        drive = self._drive
        try:
            drive.replay.begin(branch_set, paths)
        except Diverged as diverged:
            raise drive.refuse(diverged) from None
        results: list[Any] = [None] * len(calls)
        errors: Errors = {}
        if not calls:
            return results, errors
        numbered = enumerate(zip(paths, calls, strict=True))
        left = running = min(at_once, len(calls))
        drive.waits.fork(running)

        async def work() -> None:
            nonlocal left
            task = asyncio.current_task()
            assert task is not None
            try:
                for place, (path, call) in numbered:
                    self.of[task] = Branch(path)
                    try:
                        results[place] = await call()
                    except BaseException as error:
                        if not is_failure(error):
                            raise
                        errors[place] = error
                    self._check_ended(path, errors.get(place))
            finally:
                self.of.pop(task, None)
                left -= 1
                drive.waits.join(last=left == 0)

        tasks = [drive.loop.create_task(work()) for _ in range(running)]
        cancelled = await _ended(tasks)
        self._raise_unwinding(tasks)
        if cancelled:
            # It came too late: every branch has ended, and a replay will see that they did.
            current = asyncio.current_task()
            assert current is not None
            drive.late.add(current)
        return results, errors

    def _check_ended(self, path: str, error: BaseException | None) -> None:
        """Refuse the run if more was recorded of a branch that has ended."""
        drive = self._drive
        if drive.halted is None:
            try:
                drive.replay.end(path, raised(error, drive.secrets) if error is not None else "")
            except Diverged as diverged:
                drive.refuse(diverged)

    def _raise_unwinding(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        """Leave with the tasks that were unwound: the run rests or is lost, or is being cancelled."""
        reasons = [task.exception() for task in tasks if not task.cancelled()]
        for reason in reasons:
            if isinstance(reason, Unwind):
                raise reason
        if self._drive.halted is not None:
            raise self._drive.halted
        if any(task.cancelled() for task in tasks):
            raise asyncio.CancelledError
        for reason in reasons:
            if reason is not None:
                raise reason


def _next_set(parent: Branch, name: str) -> str:
    """Return the path of the next set of branches, counted like a step of that name."""
    branch_set = set_path(parent.path, name, parent.count(name))
    if len(branch_set) > _PATH_BYTES:
        raise InvalidInput("branches are nested too deeply")
    return branch_set


async def _ended(tasks: Sequence["asyncio.Task[None]"]) -> bool:
    """Wait until all tasks have ended, cancelled once one is unwound or whoever waits is cancelled.

    Returns whether whoever waits was cancelled, however often.
    """
    cancelled = False
    pending: Iterable[asyncio.Task[None]] = tasks
    try:
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        cancelled = True
    for task in pending:
        task.cancel()
    while pending := [task for task in pending if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


def _given(code: Awaitable[Any]) -> Call:
    async def call() -> Any:
        return await code

    return call
