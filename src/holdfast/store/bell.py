"""Bells: in-process hints that a run may have something new."""

import asyncio
from collections import defaultdict

from holdfast.core.ids import RunId


Topic = tuple[RunId | None, bool]
"""A run and whether its entries matter (or only where it stands); no run: whatever may be claimed."""


class Bell:
    """One watcher's bell."""

    __slots__ = ("_bells", "_rung", "_topic")

    def __init__(self, bells: "Bells", topic: Topic) -> None:
        self._bells, self._topic = bells, topic
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake the watcher, now or when it next waits."""
        self._rung.set()

    async def wait(self, timeout_seconds: float | None = None) -> None:
        """Return when it rang since it was taken, or when the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()

    def close(self) -> None:
        """Stop listening."""
        self._bells.remove(self._topic, self)


class Bells:
    """All bells of a process."""

    def __init__(self) -> None:
        self._by_topic: defaultdict[Topic, set[Bell]] = defaultdict(set)

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def watch(self, run: RunId | None, *, entries: bool = True) -> Bell:
        """Return a new bell."""
        topic = (run, entries)
        bell = Bell(self, topic)
        self._by_topic[topic].add(bell)
        return bell

    def remove(self, topic: Topic, bell: Bell) -> None:
        """Forget a bell; forgetting twice is nothing."""
        bells = self._by_topic.get(topic)
        if bells is not None:
            bells.discard(bell)
            if not bells:
                del self._by_topic[topic]

    def ring(self, run: RunId | None, *, moved: bool = True) -> None:
        """Ring for one run; `moved` when it also stands elsewhere than before."""
        for bell in self._by_topic.get((run, True), ()):
            bell.ring()
        if moved:
            for bell in self._by_topic.get((run, False), ()):
                bell.ring()

    def ring_all(self) -> None:
        """Ring every bell: somebody outside this process wrote."""
        for bells in list(self._by_topic.values()):
            for bell in bells:
                bell.ring()
