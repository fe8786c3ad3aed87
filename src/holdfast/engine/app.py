"""What a program can drive: its durable functions, their dependencies and their version."""

import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from typing import Any, TypeVarTuple, overload

from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import checked_text
from holdfast.core.version import CodeVersion
from holdfast.engine.function import Durable, OnlyDurable
from holdfast.engine.refusing import decorated
from holdfast.engine.schedule import Missed, Overlap, Schedule, declare

Args = TypeVarTuple("Args")


class App:
    """The parts of a program, by name. Nothing is registered anywhere else."""

    def __init__(
        self,
        *parts: Durable[Any, ...],
        deps: Callable[[], Any] | None = None,
        version: str | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        if deps is not None and not callable(deps):
            raise InvalidInput(f"App(deps=) is a function that builds the dependencies, not {deps!r}")
        if version is not None and "|" in checked_text("App(version=)", version, limits.NAME_BYTES):
            raise InvalidInput("App(version=) may not hold a bar: versions are kept in a list that it divides")
        if isinstance(secrets, str) or not all(isinstance(name, str) for name in secrets):
            raise InvalidInput("App(secrets=) is a list of names of environment variables")
        self.deps, self.version, self.secrets = deps, version, tuple(secrets)
        self._started = uuid.uuid4().hex[:8]
        self._functions: dict[str, Durable[Any, ...]] = {}
        self.schedules: dict[str, Schedule] = {}
        """What its workers start by the clock, by name."""
        for part in parts:
            self.add(part)

    def add(self, part: Durable[Any, ...]) -> None:
        """Add a durable function.

        Raises:
            InvalidInput: it is not one, or another has its name, or its result could never be stored.
        """
        if not isinstance(part, Durable):
            raise _no_part(part)
        part.check_result()
        for name in (part.name, *part.aliases):
            known = self._functions.get(name)
            if known is not None and known is not part:
                raise InvalidInput(f"two functions are called {name!r}: give one of them @hf.durable(name=...)")
            self._functions[name] = part

    # A first parameter annotated `datetime` is given the tick, so those overloads stand before the plain ones.
    @overload
    def schedule(
        self, what: Callable[[OnlyDurable, datetime], Awaitable[Any]], cron: str, /, *, name: str | None = None,
        tz: str = "UTC", missed: Missed = "skip", overlap: Overlap = "allow",
    ) -> None: ...  # fmt: skip
    @overload
    def schedule(
        self, what: Callable[[OnlyDurable], Awaitable[Any]], cron: str, /, *, name: str | None = None, tz: str = "UTC",
        missed: Missed = "skip", overlap: Overlap = "allow",
    ) -> None: ...  # fmt: skip
    @overload
    def schedule(
        self, what: Callable[[OnlyDurable, datetime, *Args], Awaitable[Any]], cron: str, /, *, name: str | None = None,
        tz: str = "UTC", missed: Missed = "skip", overlap: Overlap = "allow", args: tuple[*Args],
    ) -> None: ...  # fmt: skip
    @overload
    def schedule(
        self, what: Callable[[OnlyDurable, *Args], Awaitable[Any]], cron: str, /, *, name: str | None = None,
        tz: str = "UTC", missed: Missed = "skip", overlap: Overlap = "allow", args: tuple[*Args],
    ) -> None: ...  # fmt: skip
    def schedule(
        self, what: Any, cron: str, /, *, name: str | None = None, tz: str = "UTC", missed: str = "skip",
        overlap: str = "allow", args: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        """Let the workers of this app start one run of a function at every tick of a cron expression.

        Declare it before the app is opened. A tick has one run, however many workers there are. A first parameter that
        is annotated `datetime` is given the tick; `args` are the others.

        Raises:
            InvalidInput: the expression or an option means nothing, or another schedule has its name.
        """
        self.add_schedule(declare(what, cron, name=name, tz=tz, missed=missed, overlap=overlap, args=args))

    def add_schedule(self, schedule: Schedule) -> None:
        """Add a schedule that was declared, with its function.

        Raises:
            InvalidInput: another has its name.
        """
        if self.schedules.get(schedule.name, schedule) is not schedule:
            raise InvalidInput(f"two schedules are called {schedule.name!r}: give one of them name=")
        self.add(schedule.function)
        self.schedules[schedule.name] = schedule

    def get(self, name: str) -> Durable[Any, ...] | None:
        """Return the function of that name."""
        return self._functions.get(name)

    def code(self, part: Durable[Any, ...]) -> str:
        """Return the version of a part's code: as given, else a digest of its source."""
        return self.version or part.code

    def token(self, part: Durable[Any, ...]) -> str:
        """Return what a divergence refuses: the version as given, else this program as it was started.

        A digest of one function's source does not tell what it calls, so a program started anew may try again.
        """
        return self.version or f"{part.code}.{self._started}"

    @property
    def names(self) -> Collection[str]:
        """Every name that it answers to."""
        return self._functions.keys()

    def versions(self) -> list[CodeVersion]:
        """Return the version of the code that every name is served with."""
        return [
            CodeVersion(name=name, code=self.code(part), source=part.code) for name, part in self._functions.items()
        ]

    def serves(self) -> dict[str, str]:
        """Return every name with the token that its refusals go by."""
        return {name: self.token(part) for name, part in self._functions.items()}


def _no_part(part: object) -> InvalidInput:
    if isinstance(part, list | tuple | set | frozenset | dict):
        return InvalidInput("hf.App takes durable functions one by one: hf.App(*functions), not a list of them")
    return InvalidInput(f"hf.App takes durable functions, not {part!r}{decorated(part)}")
