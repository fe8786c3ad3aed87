"""Bells: in-process hints that a run may have something new."""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from holdfast.core.ids import Fence, RunId
from holdfast.store.value import Page, Queued, Turn

Topic = tuple[RunId | None, bool]
"""A run and whether its entries matter (or only where it stands); no run: whatever may be claimed."""
Word = tuple[RunId, str, Fence, Turn]
"""How a step under a lease stands with its limit now."""


class Bell:
    """One watcher's bell."""

    __slots__ = ("_bells", "_ending", "_loop", "_rung", "_topic", "_waiter")

    def __init__(self, bells: "Bells", topic: Topic) -> None:
        self._bells, self._topic = bells, topic
        self._loop = asyncio.get_running_loop()
        self._rung = False
        self._ending: Page | None = None
        self._waiter: asyncio.Future[None] | None = None

    def ring(self, ending: Page | None = None) -> None:
        """Wake the watcher, now or when it next waits."""
        self._rung = True
        self._ending = ending
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_seconds: float | None = None) -> Page | None:
        """Return when it rang since the last wait, or when the time is over; with the run's ending if it came along."""
        if not self._rung:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_seconds, self._wake) if timeout_seconds is not None else None
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        self._rung = False
        ending, self._ending = self._ending, None
        return ending

    def close(self) -> None:
        """Stop listening."""
        self._bells.remove(self._topic, self)


class Bells:
    """All bells of a process."""

    def __init__(self) -> None:
        self._by_topic: defaultdict[Topic, set[Bell]] = defaultdict(set)
        self.heard: set[RunId | None] = set()
        """The runs whose every entry somebody listens to."""
        self.queued: dict[tuple[RunId, str], str] = {}
        """The steps of this process that wait for a slot, and the limits that they wait for."""
        self._words: dict[RunId, dict[tuple[str, Fence], Queued]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def watch(self, run: RunId | None, *, entries: bool = True) -> Bell:
        """Return a new bell."""
        topic = (run, entries)
        bell = Bell(self, topic)
        self._by_topic[topic].add(bell)
        if entries:
            self.heard.add(run)
        return bell

    def remove(self, topic: Topic, bell: Bell) -> None:
        """Forget a bell; forgetting twice is nothing."""
        bells = self._by_topic.get(topic)
        if bells is not None:
            bells.discard(bell)
            if not bells:
                del self._by_topic[topic]
                if topic[1]:
                    self.heard.discard(topic[0])
                elif topic[0] is not None:
                    self._words.pop(topic[0], None)

    def ring(self, run: RunId | None, *, moved: bool = True, ending: Callable[[], Page] | None = None) -> None:
        """Ring for one run; `moved` when it also stands elsewhere than before, `ending` when it has ended."""
        for bell in self._by_topic.get((run, True), ()):
            bell.ring()
        if moved:
            watchers = self._by_topic.get((run, False), ())
            page = ending() if ending is not None and watchers else None
            for bell in watchers:
                bell.ring(page)

    def tell(self, word: Word) -> None:
        """Ring for a step that waits for a slot; if it still has to wait, it is told for how long, and need not ask."""
        run, step, fence, turn = word
        if isinstance(turn, Queued) and (run, step) in self.queued:
            self._words.setdefault(run, {})[step, fence] = turn
        else:
            self.told(run, step, fence)
        self.ring(run)

    def told(self, run: RunId, step: str, fence: Fence) -> Queued | None:
        """Return the word that came for a step, once."""
        words = self._words.get(run)
        return words.pop((step, fence), None) if words else None

    def unsay(self, run: RunId) -> None:
        """Forget what was told to a run's steps: somebody else has written since."""
        self._words.pop(run, None)

    def waiting(self) -> list[RunId]:
        """Return the runs of which somebody only waits to hear where they stand."""
        return [run for run, entries in self._by_topic if run is not None and not entries]

    def ring_but_waiting(self) -> None:
        """Ring every bell but those of the runs that are `waiting`."""
        for (run, entries), bells in list(self._by_topic.items()):
            if run is None or entries:
                for bell in bells:
                    bell.ring()

    def ring_moved(self, run: RunId) -> None:
        """Ring for those who wait to hear where a run stands."""
        for bell in self._by_topic.get((run, False), ()):
            bell.ring()

    def ring_all(self) -> None:
        """Ring every bell: somebody outside this process wrote."""
        for bells in list(self._by_topic.values()):
            for bell in bells:
                bell.ring()
