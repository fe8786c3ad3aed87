"""A warm interpreter that forks one child per trial, watches it live or die, and tells how it ended."""

import asyncio
import faulthandler
import gc
import importlib
import importlib.util
import inspect
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from holdfast.testing import ptrace
from holdfast.testing.call import Call, within
from holdfast.testing.points import AtCall, AtPoint, FailAt, Points, Tally, striking
from holdfast.testing.syscalls import LAST_WORDS, LAST_WORDS_SECONDS, Action, Traced, trace

BOOT: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from holdfast.testing.forkserver import serve
serve(int(sys.argv[1]), json.loads(sys.argv[3]))
"""
"""What the interpreter of a server runs: its arguments are a connection's number, the module path and the preloads."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function by the name of its module, the module's file, and its own name; a server can find it there."""

    module: str
    file: str | None
    name: str

    @classmethod
    def of(cls, function: Callable[..., object]) -> "Target":
        """Return where `function` is to be found.

        Raises:
            ValueError: it is not a module's function, or the module is the script itself.
        """
        module, name = function.__module__, getattr(function, "__qualname__", "")
        if not inspect.isfunction(function) or module == "__main__" or "<" in name:
            raise ValueError(f"{name or function} must be a function at the top of a module that can be imported")
        return cls(module, getattr(sys.modules.get(module), "__file__", None), name)

    def load(self) -> Callable[..., object]:
        found: Any = self._module()
        for part in self.name.split("."):
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]

    def _module(self) -> ModuleType:
        if self.module in sys.modules:
            return sys.modules[self.module]
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError:
            # A test module may live on no import path: its runner loaded it from its file, and so do we.
            spec = None if self.file is None else importlib.util.spec_from_file_location(self.module, self.file)
            if spec is None or spec.loader is None:
                raise
            module = importlib.util.module_from_spec(spec)
            sys.modules[self.module] = module
            spec.loader.exec_module(module)
            return module


@dataclass(frozen=True, slots=True)
class Trial:
    """One child to run: what, how it is to be struck, and what to watch."""

    target: Target
    args: bytes
    watch: tuple[str, ...]
    seam: str | None
    timeout_seconds: float
    die: AtCall | AtPoint | None = None
    fail: FailAt | None = None
    record: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trial's child ended, as the server saw it; `result` is what the child itself still managed to write."""

    traced: Traced
    points: int
    last: str
    result: bytes
    output: str
    seconds: float
    recorded: Sequence[tuple[Call, int]] = ()


def serve(number: int, preload: Sequence[str]) -> None:
    """Answer trials until the other end closes; the first answer says whether the preloads could be imported."""
    connection = Connection(number)
    ptrace.adopt_orphans()
    connection.send(_guarded(lambda: [importlib.import_module(name).__name__ for name in preload]))
    # What is alive now stays alive: a collection in a child would only copy the parent's pages.
    gc.collect()
    gc.freeze()
    while True:
        try:
            trial: Trial = connection.recv()
        except EOFError:
            return
        connection.send(_guarded(partial(_run, trial, connection)))


def _guarded(work: Callable[[], object]) -> object:
    """Return what `work` returns, or the text of its failure as an exception that can cross a process."""
    try:
        return work()
    except Exception:
        return RuntimeError(traceback.format_exc())


def _run(trial: Trial, connection: Connection) -> Ending:
    target = trial.target.load()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise RuntimeError(f"importing the trial's modules started {threads - 1} threads, which a fork would lose")
    stage = _Stage(trial, target, connection)
    started = time.monotonic()
    try:
        return stage.play(started)
    finally:
        stage.close()
        _end_orphans()


class _Stage:
    """What a trial's child and its server share: memory files for its output and result, and a tally of its points."""

    def __init__(self, trial: Trial, target: Callable[..., object], connection: Connection) -> None:
        self._trial, self._target, self._connection = trial, target, connection
        self._output, self._result = os.memfd_create("output"), os.memfd_create("result")
        self._tally = Tally()
        self._last: Call | None = None
        self._recorded: list[tuple[Call, int]] = []

    def play(self, started: float) -> Ending:
        traced = self._traced() if self._trial.watch else self._forked()
        points, name = self._tally.read()
        return Ending(
            traced=traced,
            points=points,
            last=str(self._last) if self._last is not None else name,
            result=_contents(self._result),
            output=_contents(self._output).decode(errors="replace"),
            seconds=time.monotonic() - started,
            recorded=self._recorded,
        )

    def close(self) -> None:
        os.close(self._output)
        os.close(self._result)
        self._tally.close()

    def _traced(self) -> Traced:
        trial = self._trial
        rule = striking(trial.die if isinstance(trial.die, AtCall) else None, trial.fail)

        def decide(call: Call) -> Action:
            self._last = call
            return rule(call)

        return trace(
            self._child,
            decide,
            watch=within(*trial.watch),
            done=(lambda call, result: self._recorded.append((call, result))) if trial.record else None,
            timeout_seconds=trial.timeout_seconds,
        )

    def _forked(self) -> Traced:
        child = os.fork()
        if child == 0:
            exit_status = 70
            try:
                ptrace.die_with_parent()
                exit_status = self._child()
            finally:
                os._exit(exit_status)
        stuck = not _ends_within(child, self._trial.timeout_seconds)
        if stuck:
            os.kill(child, LAST_WORDS)
            _ends_within(child, LAST_WORDS_SECONDS)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return Traced(os.waitstatus_to_exitcode(status), 0, stuck)

    def _child(self) -> int:
        """Be the trial: run the target and leave its value, or its traceback, where the server looks."""
        self._connection.close()
        for standard in (1, 2):
            os.dup2(self._output, standard)
        faulthandler.register(LAST_WORDS, file=2, all_threads=True)
        try:
            if self._trial.seam is not None:
                at = self._trial.die if isinstance(self._trial.die, AtPoint) else None
                Points.dying(at, self._tally).arm(self._trial.seam)
            result, status = pickle.dumps((self._call(), None)), 0
        except BaseException:
            result, status = pickle.dumps((None, traceback.format_exc())), 1
        os.write(self._result, result)
        return status

    def _call(self) -> object:
        args = pickle.loads(self._trial.args)
        if inspect.iscoroutinefunction(self._target):
            return asyncio.run(self._target(*args))
        return self._target(*args)


def _ends_within(child: int, seconds: float) -> bool:
    handle = os.pidfd_open(child)
    try:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        return bool(ended.poll(seconds * 1000))
    finally:
        os.close(handle)


def _contents(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _end_orphans() -> None:
    """Kill what a trial's child left running; as their adoptive parent, the server sees them all."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while left := children.read_text().split():
        for child in left:
            os.kill(int(child), signal.SIGKILL)
            os.waitpid(int(child), 0)
