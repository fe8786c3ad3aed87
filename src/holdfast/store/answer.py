"""What a caller of a write waits for: an outcome to be, and the failure that it may come to."""

import asyncio
from collections.abc import Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Failure:
    """An outcome that is raised to the caller."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Answer(asyncio.Future[Any]):
    """An outcome to be. It refuses to be cancelled, so that a cancelled caller still learns what was written."""

    __slots__ = ()

    def cancel(self, msg: Any = None) -> bool:
        """Do nothing: what is queued is written."""
        return False

    def settle(self, outcome: Any) -> None:
        """Tell it."""
        if outcome.__class__ is Failure:
            self.set_exception(outcome.error)
        else:
            self.set_result(outcome)


class Done(Generic[T]):
    """An outcome that is known, but still lets others take their turn."""

    def __init__(self, outcome: T) -> None:
        self._outcome = outcome

    def __await__(self) -> Generator[Any, Any, T]:
        yield
        return self._outcome

    def done(self) -> bool:
        """Say that it is known."""
        return True

    def result(self) -> T:
        """Return it."""
        return self._outcome
