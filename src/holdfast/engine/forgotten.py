"""Verbs that were called and never awaited: what Python lets pass in a whisper, a run says aloud."""

import sys
from collections.abc import Callable
from functools import wraps
from inspect import CORO_CREATED, getcoroutinestate
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive

Function = TypeVar("Function", bound=Callable[..., Any])
Called = tuple[Any, CodeType, int]
"""A verb's coroutine, and where it was called: the code, and the instruction in it."""
_SWEPT_AT: Final = 64
_FORGOTTEN: Final = "a verb was called and never awaited, so it did nothing: write await before it"


class HasVerbs(Protocol):
    """A context, or a handle that it gave."""

    _drive: "Drive"


class Calls:
    """The verbs of one run's code that may still be unawaited; in code that awaits each, there is never but one."""

    __slots__ = ("_open", "_sweep_at", "last")

    def __init__(self) -> None:
        self.last: Called | None = None
        self._open: list[Called] = []
        self._sweep_at = _SWEPT_AT

    def keep(self, called: Called) -> None:
        """Keep one that had not ended when the next was called: a branch's, or a forgotten one."""
        self._open.append(called)
        if len(self._open) >= self._sweep_at:
            self._open = [each for each in self._open if _is_unbegun(each)]
            self._sweep_at = max(_SWEPT_AT, 2 * len(self._open))

    def close(self, drive: "Drive") -> None:
        """Warn of each that nobody awaited, now that the code is over, and let none of them warn by itself."""
        for called in (*self._open, *([self.last] if self.last is not None else [])):
            if _is_unbegun(called):
                code, where, at = called
                if not drive.rehearsing:
                    place = f"{where.co_filename}:{_line_of(where, at)}"
                    drive.log.warning(_FORGOTTEN, verb=_verb_of(code), line=place, function=where.co_qualname)
                code.close()
        self._open, self.last = [], None


def noted(verb: Function) -> Function:
    """Have a verb's calls known to its owner's `Calls`; this is on the way of every step, so it does no more."""

    @wraps(verb)
    def call(self: HasVerbs, /, *args: Any, **options: Any) -> Any:
        code = verb(self, *args, **options)
        calls, caller = self._drive.calls, sys._getframe(1)
        last = calls.last
        if last is not None and last[0].cr_frame is not None:
            calls.keep(last)
        calls.last = (code, caller.f_code, caller.f_lasti)
        return code

    return cast("Function", call)


def _is_unbegun(called: Called) -> bool:
    return getcoroutinestate(called[0]) == CORO_CREATED


def _line_of(code: CodeType, at: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= at < end and line is not None)
    return next(lines, code.co_firstlineno)


def _verb_of(code: Any) -> str:
    """Return a call as its author wrote it, as far as it names anything: `ctx.step(charge)`, `ctx.sleep`."""
    given = code.cr_frame.f_locals
    what = given.get("function") or given.get("what")
    named = getattr(what, "name", None) or getattr(getattr(what, "func", what), "__name__", "")
    verb = code.__name__.removeprefix("_")
    return f"{verb}({named})" if isinstance(named, str) and named else str(verb)
