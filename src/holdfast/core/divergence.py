"""What is said of a run whose code asks for something other than its journal recorded, and what to do about it."""

from typing import Final

from holdfast.core.errors import Diverged

_SAME: Final = "; the code's version is the one that recorded it"
UNSTEADY: Final = (
    "The code is the same and takes another way each time. Look between its steps for `random`, the time, the order "
    "of a set, the environment, or something it calls that was changed without a new version; docs/replay.md has the "
    "rules."
)


def told(refused: Diverged, *, same: bool) -> str:
    """Return what a divergence is told as; `same` says that the version which recorded the run is the one that asks."""
    return f"{refused}{_SAME if same else ''}"


def is_unsteady(said: str) -> bool:
    """Say whether what was told is a divergence of code from itself."""
    return said.endswith(_SAME)


def advice(said: str) -> str:
    """Return what to do about a divergence, from what was told of it."""
    return UNSTEADY if is_unsteady(said) else Diverged.hint
