"""Every crash of a program in turn: it dies around each of its writes, goes on, and must end as if unbroken."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple

from holdfast.core.errors import InvalidInput
from holdfast.core.retry import checked_seconds
from holdfast.engine.app import App
from holdfast.engine.function import Durable, OnlyDurable
from holdfast.testing.life import Ended
from holdfast.testing.outside import Answers, outside
from holdfast.testing.process_stage import ProcessStage
from holdfast.testing.stage import MemoryStage, Played
from holdfast.testing.verdict import NotSurvived, judge, judge_signals, judge_unbroken

R = TypeVar("R")
Args = TypeVarTuple("Args")
Check = Callable[[Ended], object]
_MOST: Final = 100_000
_one_at_a_time = threading.Lock()
"""What is performed is told to one listener in the process."""


@dataclass(frozen=True, slots=True)
class Survived:
    """What was seen: how many crashes, and how the run ends unbroken."""

    crashes: int
    unbroken: Ended


async def every_crash(
    what: Callable[[OnlyDurable, *Args], Awaitable[R]],
    /,
    *args: *Args,
    app: App | None = None,
    check: Check | None = None,
    setup: Callable[[], object] | None = None,
    signals: Mapping[Any, Any] | None = None,
    answers: Answers = None,
    allow_doubt: bool = False,
    processes: bool = False,
    timeout: float | timedelta = 30.0,
) -> Survived:
    """Kill a program before and after each of its writes in turn, let it go on, and see that it ends as if unbroken.

    After each crash the run must come to the same result, perform no step again whose outcome was recorded, and perform
    no `once` step twice. `check` is given each ending, the unbroken one too; it raises, or returns False, if something
    is wrong. `setup` is called before each trial, to put back what the steps change. A run that waits for one of
    `signals` is sent its value before any time passes; a signal that no run received in any trial is an error. Every
    question is answered by `answers`: a bool, or a function of the question that returns one, or `(True, {...})` with
    changes to its `args`, or an `hf.Decision`. `allow_doubt` accepts that a crash leaves a `once` step in doubt.
    A trial may take `timeout`.

    Without `processes` the crashes happen in this process, on a store in memory: a life has an event loop of its own,
    whose tasks are never resumed. With it a real process is killed, on a file; function and app must then stand at the
    top of a module.

    Raises:
        NotSurvived: it did not end as it should; this AssertionError tells the crash, the difference and the journal.
        InvalidInput: what was given is none of that.
    """
    if not isinstance(what, Durable):
        raise InvalidInput(f"every_crash wants a durable function, not {what!r}; decorate it with @hf.durable")
    alone, app = app is None, app if app is not None else App()
    app.add(what)
    seconds = checked_seconds("timeout=", timeout, least=1e-6)
    stage = partial(ProcessStage, alone=alone) if processes else MemoryStage
    others = outside(signals, answers)
    campaign = _Campaign(check, setup, allow_doubt, others.signals, app.names)
    return await asyncio.to_thread(campaign.run, lambda: stage(what, args, app, others, seconds=seconds))


class _Campaign:
    """What is asked of a program."""

    def __init__(
        self, check: Check | None, setup: Callable[[], object] | None, allow_doubt: bool, signals: Iterable[str],
        known: Collection[str],
    ) -> None:  # fmt: skip
        self._check, self._setup, self._allow_doubt, self._known = check, setup, allow_doubt, known
        self._unwanted = set(signals)
        """Those that no run has received yet."""

    def run(self, stage: Callable[[], MemoryStage | ProcessStage]) -> Survived:
        """Play trials until one is not killed any more.

        Raises:
            NotSurvived: one was not survived.
        """
        with _one_at_a_time, stage() as playing:
            unbroken, _ = self._trial(playing, None)
            judge_unbroken(unbroken, self._trial(playing, None)[0], self._known)
            self._ask(unbroken, unbroken)
            for nth in range(1, _MOST):
                ended, lives = self._trial(playing, nth)
                if ended.crash is None:
                    judge_signals(sorted(self._unwanted), unbroken)
                    return Survived(nth - 1, unbroken)
                judge(ended, unbroken, lives, allow_doubt=self._allow_doubt)
                self._ask(ended, unbroken)
        raise NotSurvived(f"there is no end to it: {_MOST:,} crashes", unbroken, unbroken)

    def _trial(self, stage: MemoryStage | ProcessStage, nth: int | None) -> Played:
        stage.clear()
        if self._setup is not None:
            self._setup()
        played = stage.trial(nth)
        self._unwanted.difference_update(played[0].received)
        return played

    def _ask(self, ended: Ended, unbroken: Ended) -> None:
        if self._check is None:
            return
        try:
            refused = self._check(ended) is False
        except Exception as error:
            raise NotSurvived(f"check raised {type(error).__name__}: {error}", ended, unbroken) from error
        if refused:
            raise NotSurvived("check returned False", ended, unbroken)
