"""What a caller of a write waits for: an outcome to be, and the failure that it may come to."""

import asyncio
from typing import Any


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
