"""The checkpoint of a loop that was given no store: it keeps nothing, and the loop need not know."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.status import NotDone
from holdfast.engine.checkpoint import AsyncCheckpoint, Intent, Known, M


class Nowhere(AsyncCheckpoint[M]):
    """Every verb does nothing; an effect is performed whenever it is asked for."""

    def __init__(self, checkpoint: str) -> None:
        self.id, self.run, self.attempt = checkpoint, None, 1

    @property
    def iteration(self) -> int | None:
        return None

    @property
    def phase(self) -> str | None:
        return None

    @property
    def doubts(self) -> Mapping[str, str]:
        return {}

    async def load(self) -> list[M] | None:
        return None

    async def save(self, messages: Sequence[M], iteration: int | None = None, phase: str | None = None) -> bool:
        return False

    async def flush(self) -> None:
        return None

    async def begin_effect(self, key: str, args: Sequence[Any]) -> Intent | Known:
        return Intent(key, "")

    async def end_effect(self, intent: Intent, value: Any) -> Any:
        return value

    async def end_in_doubt(self, intent: Intent, error: Exception) -> None:
        return None

    async def resolve(self, key: str, value: Any | NotDone, *, by: str | None = None, note: str | None = None) -> None:
        return None

    async def complete(self, result: Any = None) -> None:
        return None

    async def fail(self, error: BaseException | str) -> None:
        return None

    async def keep(self, why: str) -> None:
        return None

    async def close(self, error: BaseException | None) -> None:
        return None
