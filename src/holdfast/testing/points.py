"""Where a trial strikes: at a named point in the program's code, or at one of its file calls."""

import importlib
import mmap
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Self

from holdfast.testing.call import Call
from holdfast.testing.syscalls import Action, Fail, Go

_TALLY_BYTES: Final = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class AtCall:
    """Die at the nth watched file call, counted from 1: just before it happens, or as soon as it has.

    With `names` (as in `{"fsync", "fdatasync"}`) only those calls count.
    """

    nth: int
    when: Literal["before", "after"] = "before"
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AtPoint:
    """Die at the nth named point that the code passes, counted from 1; with `named`, only points of that name count."""

    nth: int
    named: str | None = None


@dataclass(frozen=True, slots=True)
class FailAt:
    """Let the nth watched file call fail with `errno` without happening; `lasting` fails every one from there on."""

    nth: int
    errno: int
    names: frozenset[str] = frozenset()
    lasting: bool = False


class Tally:
    """A number and a name that outlive the process that wrote them, because its parent shares the page."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _TALLY_BYTES)

    def write(self, count: int, name: str) -> None:
        text = name.encode()[: _TALLY_BYTES - 12]
        self._page[:] = (count.to_bytes(8) + len(text).to_bytes(4) + text).ljust(_TALLY_BYTES, b"\0")

    def read(self) -> tuple[int, str]:
        length = int.from_bytes(self._page[8:12])
        return int.from_bytes(self._page[:8]), self._page[12 : 12 + length].decode(errors="replace")

    def close(self) -> None:
        self._page.close()


class Points:
    """Stands in the seam that a program calls at its named points: counts them, and at the chosen one the process dies.

    The death is a real SIGKILL of the whole process, from whichever thread gets there; no `finally` runs.
    """

    def __init__(self, die_at: int | None = None, *, named: str | None = None, tally: Tally | None = None) -> None:
        self._die_at, self._named, self._tally = die_at, named, tally
        self._lock = threading.Lock()
        self._counted = 0
        self._passed = 0

    @classmethod
    def dying(cls, at: AtPoint | None, tally: Tally | None = None) -> Self:
        """Return the points of a trial that dies at `at`, or of an undisturbed one."""
        return cls(tally=tally) if at is None else cls(at.nth, named=at.named, tally=tally)

    @property
    def passed(self) -> int:
        """How many points the program has come to, whatever their names."""
        return self._passed

    def __call__(self, name: str) -> None:
        with self._lock:
            self._passed += 1
            if self._tally is not None:
                self._tally.write(self._passed, name)
            if self._named is None or name == self._named:
                self._counted += 1
                if self._counted == self._die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                    signal.pause()

    def arm(self, seam: str) -> None:
        """Put these points into `seam`, a settable attribute written `package.module:attribute`."""
        module, _, attribute = seam.partition(":")
        owner: object = importlib.import_module(module)
        *outer, last = attribute.split(".")
        for name in outer:
            owner = getattr(owner, name)
        if not hasattr(owner, last):
            raise AttributeError(f"there is no seam {seam}")
        setattr(owner, last, self)


def striking(die: AtCall | None, fail: FailAt | None) -> Callable[[Call], Action]:
    """Return the rule over a trace's calls that makes `die` and `fail` come true."""
    deadly = failing = 0

    def decide(call: Call) -> Action:
        nonlocal deadly, failing
        if die is not None and (not die.names or call.name in die.names):
            deadly += 1
            if deadly == die.nth:
                return Go.KILL_BEFORE if die.when == "before" else Go.KILL_AFTER
        if fail is not None and (not fail.names or call.name in fail.names):
            failing += 1
            if failing == fail.nth or (fail.lasting and failing > fail.nth):
                return Fail(fail.errno)
        return Go.ON

    return decide
