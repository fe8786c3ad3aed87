"""Run a function in a child that dies by a real SIGKILL where it is told to, at a few milliseconds per trial."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe
from typing import Any, Final, Self

from holdfast.testing import ptrace
from holdfast.testing.call import Call
from holdfast.testing.forkserver import BOOT, Ending, Target, Trial
from holdfast.testing.points import AtCall, AtPoint, FailAt, Points

__all__ = ["AtCall", "AtPoint", "FailAt", "Killer", "KillerLost", "Outcome", "Points", "TrialFailed"]

Place = str | os.PathLike[str]

_START_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 20.0


class KillerLost(RuntimeError):
    """The server that forks the trials is gone or does not answer; no trial of it is left running."""


class TrialFailed(AssertionError):
    """A trial that should have finished by itself did not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended.

    `killed` means that it died by SIGKILL, as told; `stuck`, that it was ended because its time was up (then `output`
    ends with every thread's stack). `calls` and `points` count the watched calls and the named points it came to, and
    `last` is the last of them. `value` is what the target returned, `error` its traceback.
    """

    killed: bool
    stuck: bool
    exit_status: int
    calls: int
    points: int
    last: str
    value: Any
    error: str | None
    output: str
    seconds: float

    def result(self) -> Any:
        """Return the target's value.

        Raises:
            TrialFailed: it has none, because it raised, was killed or got stuck.
        """
        if self.exit_status == 0:
            return self.value
        how = "was stuck" if self.stuck else "was killed" if self.killed else f"ended with {self.exit_status}"
        raise TrialFailed(f"the trial {how} (last: {self.last or 'nothing'})\n{self.error or self.output}")


class Killer:
    """A fork server for trials, one at a time; two cores are kept busy by two killers on two threads.

    `preload` names the modules that every trial wants imported. `seam` is the settable attribute, written
    `package.module:attribute`, that the program calls with a name at each of its crash points.
    """

    def __init__(self, *, preload: Sequence[str] = (), seam: str | None = None, timeout_seconds: float = 30.0) -> None:
        ptrace.machine()
        self._seam, self._timeout_seconds = seam, timeout_seconds
        self._turn = threading.Lock()
        self._connection, theirs = Pipe()
        # Unbuffered, so that what a trial printed before it died is not lost with it.
        python = [sys.executable, "-u", "-c", BOOT]
        command = [*python, str(theirs.fileno()), json.dumps(sys.path), json.dumps(list(preload))]
        self._server = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        try:
            self._answer(_START_SECONDS)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and whatever it still runs."""
        self._connection.close()
        try:
            self._server.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def run(
        self,
        target: Callable[..., object],
        *args: object,
        die: AtCall | AtPoint | None = None,
        fail: FailAt | None = None,
        watch: Place | None = None,
    ) -> Outcome:
        """Run `target(*args)` in a fresh child, struck as told; calls are counted on what lies in `watch`.

        `target` is a function, plain or async, at the top of an importable module; arguments and value are pickled.

        Raises:
            KillerLost: the server is gone.
        """
        if watch is None and (fail is not None or isinstance(die, AtCall)):
            raise ValueError("a trial that strikes at file calls needs a place to watch")
        if self._seam is None and isinstance(die, AtPoint):
            raise ValueError("a trial that dies at a named point needs a killer with a seam")
        trial = self._trial(target, args, () if watch is None else (watch,))
        return _outcome(self._play(replace(trial, die=die, fail=fail)))

    def count(self, target: Callable[..., object], *args: object, watch: Place | None = None) -> Outcome:
        """Run `target(*args)` undisturbed, to learn how many calls and points there are to die at."""
        outcome = self.run(target, *args, watch=watch)
        outcome.result()
        return outcome

    def record(
        self, target: Callable[..., object], *args: object, watch: Sequence[Place]
    ) -> tuple[Outcome, Sequence[tuple[Call, int]]]:
        """Run `target(*args)` undisturbed and return, with the outcome, each watched call with its data and result."""
        ending = self._play(replace(self._trial(target, args, watch), record=True))
        return _outcome(ending), ending.recorded

    def _trial(self, target: Callable[..., object], args: tuple[object, ...], watch: Sequence[Place]) -> Trial:
        return Trial(
            target=Target.of(target),
            args=pickle.dumps(args),
            watch=tuple(os.fspath(place) for place in watch),
            seam=self._seam,
            timeout_seconds=self._timeout_seconds,
        )

    def _play(self, trial: Trial) -> Ending:
        with self._turn:
            try:
                self._connection.send(trial)
            except OSError as error:
                raise KillerLost("the server of the trials is gone") from error
            ending = self._answer(self._timeout_seconds + _GRACE_SECONDS)
        assert isinstance(ending, Ending)
        return ending

    def _answer(self, seconds: float) -> object:
        try:
            answer = self._connection.recv() if self._connection.poll(seconds) else None
        except (EOFError, OSError) as error:
            raise KillerLost("the server of the trials died") from error
        if answer is None:
            self._server.kill()
            raise KillerLost(f"the server of the trials did not answer within {seconds:.0f} s")
        if isinstance(answer, RuntimeError):
            raise answer
        return answer


def _outcome(ending: Ending) -> Outcome:
    value, error = pickle.loads(ending.result) if ending.result else (None, None)
    traced = ending.traced
    return Outcome(
        killed=traced.exit_status == -signal.SIGKILL and not traced.stuck,
        stuck=traced.stuck,
        exit_status=traced.exit_status,
        calls=traced.calls,
        points=ending.points,
        last=ending.last,
        value=value,
        error=error,
        output=ending.output,
        seconds=ending.seconds,
    )
