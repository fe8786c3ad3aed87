"""What a step function may ask for by annotating its first parameter `hf.Step[Deps]`."""

from collections.abc import Callable
from time import monotonic
from typing import Any, Generic, TypeVar

from holdfast.core.ids import RunId

Deps = TypeVar("Deps")


class Step(Generic[Deps]):
    """A step's view of itself: its dependencies, its idempotency key, its attempt."""

    __slots__ = ("_emit", "attempt", "beat_at", "deps", "idempotency_key", "log", "run_id")

    def __init__(
        self,
        *,
        deps: Deps,
        idempotency_key: str,
        run_id: RunId,
        attempt: int,
        log: Any,
        emit: Callable[[Any], None],
    ) -> None:
        self.deps = deps
        self.idempotency_key = idempotency_key
        self.run_id = run_id
        self.attempt = attempt
        self.log = log
        self._emit = emit
        self.beat_at = monotonic()
        """When it last gave a sign of life, on this process's own clock."""

    def emit(self, value: Any) -> None:
        """Send a chunk to whoever watches: a preview that ends when the step does. Any thread may call it.

        It is a sign of life, too.
        """
        self.beat_at = monotonic()
        self._emit(value)

    def beat(self) -> None:
        """Give a sign of life, which a step with `heartbeat=` owes. Any thread may call it."""
        self.beat_at = monotonic()
