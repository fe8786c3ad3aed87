"""Keep your own loop, and let it survive: its messages are saved as it goes, and there when it starts again."""

from holdfast.checkpoint.opening import Opening, Survey, interrupted, open
from holdfast.checkpoint.plain import Checkpoint
from holdfast.core.errors import CheckpointOwned, Lost
from holdfast.engine.checkpoint import AsyncCheckpoint
from holdfast.engine.interrupted import Interrupted

__all__ = [
    "AsyncCheckpoint",
    "Checkpoint",
    "CheckpointOwned",
    "Interrupted",
    "Lost",
    "Opening",
    "Survey",
    "interrupted",
    "open",
]
