"""Branches: parts of a run's code that go on beside each other, each with its own place in the journal."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any, Final

from holdfast.core.errors import InvalidInput, Unwind
from holdfast.core.stepkey import branch_path, counted_key, explicit_key, set_path
from holdfast.engine.drive import Drive

AT_ONCE: Final = 64
"""How many branches of a map go on beside each other if nothing is said."""


class Branch:
    """One branch: its path, and how far its code has come."""

    __slots__ = ("busy", "counts", "past", "path", "random")

    def __init__(self, path: str) -> None:
        self.path = path
        self.counts: dict[str, int] = {}
        self.busy = False
        self.past = False
        """True once the branch's last record was passed: everything after it is fresh."""
        self.random: Random | None = None

    def count(self, name: str) -> int:
        """Return the how-manieth of its name this is."""
        nth = self.counts[name] = self.counts.get(name, 0) + 1
        return nth

    def next_set(self, name: str) -> str:
        """Return the place that the next set of branches takes."""
        return set_path(self.path, name, self.counts.get(f"{name}()", 0) + 1)

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

    async def all(self, parent: Branch, name: str, codes: Sequence[Awaitable[Any]]) -> list[Any]:
        """Let all go on beside each other; return what each returned or raised, when all have ended."""
        nth = parent.count(f"{name}()")
        items = [(branch_path(parent.path, name, nth, place), _given(code)) for place, code in enumerate(codes, 1)]
        return await self._go(iter(items), len(items), len(items))

    async def map(
        self, parent: Branch, name: str, calls: Sequence[Callable[[], Coroutine[Any, Any, Any]]],
        keys: Sequence[str] | None, at_once: int,
    ) -> list[Any]:  # fmt: skip
        """Let a bounded number go on at a time; return what each returned or raised, in order."""
        nth = parent.count(f"{name}()")
        if len(f"{set_path(parent.path, name, nth)}") > 512:
            raise InvalidInput("branches are nested too deeply")
        places: Sequence[int | str] = keys if keys is not None else range(1, len(calls) + 1)
        items = ((branch_path(parent.path, name, nth, place), call) for place, call in zip(places, calls, strict=True))
        return await self._go(items, len(calls), at_once)

    async def _go(
        self, items: Iterator[tuple[str, Callable[[], Coroutine[Any, Any, Any]]]], count: int, at_once: int
    ) -> list[Any]:
        if not count:
            return []
        results: list[Any] = [None] * count
        numbered = enumerate(items)
        drive = self._drive
        running = min(at_once, count)
        drive.waits.fork(running)
        left = running

        async def work() -> None:
            nonlocal left
            task = asyncio.current_task()
            assert task is not None
            try:
                for place, (path, call) in numbered:
                    self.of[task] = Branch(path)
                    try:
                        results[place] = await call()
                    except Exception as error:
                        results[place] = error
            finally:
                self.of.pop(task, None)
                left -= 1
                drive.waits.join(last=left == 0)

        tasks = [drive.loop.create_task(work()) for _ in range(running)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await _ended(tasks)
        self._raise_unwinding(tasks)
        return results

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


async def _ended(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Wait for the end of tasks that were cancelled, however often whoever waits is cancelled meanwhile."""
    again = False
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait([task for task in tasks if not task.done()])
        except asyncio.CancelledError:
            again = True
    if again:
        raise asyncio.CancelledError


def _given(code: Awaitable[Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def call() -> Any:
        return await code

    return call
