"""A checkpoint of a user's own loop: its key, what its journal adds up to, and when the next save is due."""

from typing import Final
from urllib.parse import unquote

from msgspec import Raw, Struct, field

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import CHECKPOINT_NAME, checked_text
from holdfast.core.stepkey import encode_part, explicit_key

CODE: Final = "checkpoint"
"""The version that its runs are pinned to, so that no code of the same name can be taken for its loop."""
INTERRUPTED: Final = "interrupted"
"""The reason that a checkpoint rests for when its loop was shut down."""
_BRANCH: Final = "0"
_UNDER_WAY: Final = "it was under way"


def checkpoint_key(checkpoint: str, life: int) -> str:
    """Return the key of a checkpoint's nth life: each ends once, and the next one starts afresh."""
    return f"{CHECKPOINT_NAME}/{encode_part(checkpoint)}/{life}"


def checkpoint_of(key: str | None) -> str | None:
    """Return the id of the checkpoint that a run's key stands for; None for any other."""
    name, _, rest = (key or "").partition("/")
    encoded, _, life = rest.rpartition("/")
    return unquote(encoded) if name == CHECKPOINT_NAME and life.isdecimal() else None


def effect_step(key: str) -> str:
    """Return the step key of an effect that its author named.

    Raises:
        InvalidInput: the name is empty or too long.
    """
    return explicit_key(_BRANCH, key)


def effect_key(step: str) -> str:
    """Return the name that an effect's author gave it; the inverse of `effect_step`."""
    return unquote(step.removeprefix(f"{_BRANCH}/="))


class Done(Struct, frozen=True):
    """An effect whose outcome is recorded."""

    digest: str
    raw: Raw
    blob: e.BlobRef | None


class Record(Struct):
    """What the entries of a checkpoint so far add up to, but for its messages, which may stand in blobs."""

    state: RunState = field(default_factory=RunState)
    opened: e.CheckpointOpened | None = None
    """Who had it last."""
    last: e.CheckpointSaved | None = None
    saved: list[e.CheckpointSaved] = field(default_factory=list)
    """The saves that were not added up yet."""
    done: dict[str, Done] = field(default_factory=dict)
    """Effects that happened, by step key."""
    why: dict[str, str] = field(default_factory=dict)
    """Of those in doubt, why."""

    def take(self, entry: e.Entry) -> None:
        """Add the next entry.

        Raises:
            Damaged: it cannot follow the ones before it.
        """
        digest = self.state.open[entry.step].digest if isinstance(entry, e.StepResolved) and self._has(entry) else ""
        self.state = fold(self.state, entry)
        match entry:
            case e.CheckpointOpened():
                self.opened = entry
            case e.CheckpointSaved():
                self.last = entry
                self.saved.append(entry)
            case e.StepCompleted():
                self.done[entry.step] = Done(entry.digest, entry.raw, entry.blob)
            case e.StepResolved(outcome="done"):
                self.done[entry.step] = Done(digest, entry.raw, entry.blob)
            case e.StepDoubted():
                self.why[entry.step] = entry.sentence
            case _:
                pass

    def _has(self, entry: e.StepResolved) -> bool:
        return entry.step in self.state.open

    @property
    def doubts(self) -> dict[str, str]:
        """The effects that may or may not have happened, by their authors' names, with why nobody knows."""
        return {effect_key(step): self.why.get(step, _UNDER_WAY) for step in self.state.open}


class Window:
    """A throttle: a save is due when the last one that succeeded is this long ago."""

    def __init__(self, every_seconds: float) -> None:
        self._every = every_seconds
        self._saved_at: float | None = None

    def left(self, now: float) -> float:
        """Return how many seconds are left until a save is due; not more than 0 when it is."""
        return self._saved_at + self._every - now if self._saved_at is not None else 0.0

    def saved(self, now: float) -> None:
        """Note that a save succeeded. One that failed is not noted: the next one is due at once."""
        self._saved_at = now


def check_place(iteration: int | None, phase: str | None) -> None:
    """Refuse a place in a loop that cannot be kept.

    Raises:
        InvalidInput: the iteration is no number from 0 on, or the phase no text.
    """
    if iteration is not None and (isinstance(iteration, bool) or not isinstance(iteration, int) or iteration < 0):
        raise InvalidInput(f"iteration= is a whole number of at least 0, not {iteration!r}")
    if phase is not None:
        checked_text("the phase", phase, limits.NAME_BYTES)
