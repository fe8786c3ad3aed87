"""Record a program's file calls and make the disk images that a power loss at any moment could have left."""

import hashlib
import os
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, Self

from holdfast.testing.call import Call
from holdfast.testing.disk import Change, Disk, Metadata, Naming, Resize, Tree, Write, sectors
from holdfast.testing.killer import Killer

_LEFT_OUT: Final = ("-shm", "-shm (deleted)")
_SYNCS: Final = frozenset({"fsync", "fdatasync"})
_FIRST_VARIANTS: Final = 6
_FRUITLESS_PASSES: Final = 3


class Acks:
    """Where a program notes, outside of the image, what it has acknowledged to the world: one line each, at once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def ack(self, what: str) -> None:
        """Note that `what` has been acknowledged: from here on no power loss may take it back."""
        os.write(self._file, what.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True)
class Recording:
    """What a program did to a directory: its content before, the calls that succeeded, and the acks between them.

    An ack stands with the number of calls before it. SQLite's `-shm` files are left out: they are shared memory that
    happens to have a name, and SQLite rebuilds them. Writes through O_SYNC and the syncs of whole file systems count as
    unsynced: that can raise a false alarm, and hides nothing.
    """

    root: str
    before: Tree
    calls: tuple[Call, ...]
    acks: tuple[tuple[int, str], ...]

    def last_cut(self, cut: int) -> int:
        """Return up to which cut the images of `cut` stay possible: until a sync, all that follows may be lost."""
        return next((at for at in range(cut, len(self.calls)) if self.calls[at].name in _SYNCS), len(self.calls))

    def moment(self, cut: int, last_cut: int) -> str:
        """Say when the power was lost for an image of `cut` that stays possible up to `last_cut`."""
        when = f"power lost after {self.calls[cut - 1] if cut else 'the start'}"
        return (
            when if cut == last_cut else f"{when}, or up to call {self.calls[last_cut - 1].index} with all since lost"
        )

    def save(self, path: Path) -> None:
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return what `save` wrote; only for files of one's own, because unpickling runs what it finds."""
        recording = pickle.loads(path.read_bytes())
        assert isinstance(recording, cls)
        return recording


@lru_cache(maxsize=8)
def _digest(content: bytes) -> bytes:
    # Of an image's files most are the same as in the image before.
    return hashlib.blake2b(content, digest_size=16).digest()


@dataclass(frozen=True)
class Image:
    """One state in which a power loss could have left the directory, with all that may have been acknowledged by then.

    `name` says how to make it again from the same recording, by `image_named`.
    """

    name: str
    story: str
    acks: tuple[str, ...]
    tree: Tree

    @cached_property
    def digest(self) -> bytes:
        """The content's digest: two images with the same one are the same disk."""
        digest = hashlib.blake2b(digest_size=16)
        for path, content in sorted(self.tree.items()):
            digest.update(f"{len(path)}:{path}:".encode())
            digest.update(b"directory" if content is None else _digest(content))
        return digest.digest()

    def write_to(self, directory: Path) -> None:
        """Make the image's files in `directory`, which is made too if it is not there."""
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in sorted(self.tree.items()):
            if content is None:
                (directory / path).mkdir()
            else:
                (directory / path).write_bytes(content)


def record(
    killer: Killer,
    target: Callable[..., object],
    *args: object,
    directory: str | os.PathLike[str],
    acks: str | os.PathLike[str],
) -> Recording:
    """Run `target(*args)` in a trial and record what it does to `directory` and what it writes to the file `acks`.

    Raises:
        TrialFailed: the program did not finish by itself.
    """
    root, ledger = (str(Path(place).resolve()) for place in (directory, acks))
    if ledger.startswith(root + "/"):
        raise ValueError("the acks must lie outside of the directory that is recorded")
    before = read_tree(Path(root))
    outcome, recorded = killer.record(target, *args, watch=(root, ledger))
    outcome.result()
    calls: list[Call] = []
    marks: list[tuple[int, str]] = []
    for call, result in recorded:
        if result < 0 or call.path.endswith(_LEFT_OUT):
            continue
        if call.path == ledger:
            marks += [(len(calls), line.decode()) for line in (call.data or b"")[:result].splitlines()]
        else:
            calls.append(call if call.data is None else replace(call, data=call.data[:result], length=result))
    return Recording(root, before, tuple(calls), tuple(marks))


def read_tree(directory: Path) -> Tree:
    """Return a directory's content, SQLite's `-shm` files left out."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if not path.name.endswith(_LEFT_OUT)
    }


def images(recording: Recording, *, seed: int, limit: int, metadata: Metadata = Metadata.STRICT) -> Iterator[Image]:
    """Yield up to `limit` different disks, from cuts all over the recording; the same seed gives the same ones.

    A disk that several moments could have left comes once, with the most acks: what is fine before an ack may be a loss
    after it. Fewer come if chance finds no further ones.
    """
    best: dict[bytes, tuple[int, int, int]] = {}
    known: set[tuple[int, int]] = set()
    chance = random.Random(seed)
    first, fruitless, cuts = 0, 0, len(recording.calls) + 1
    while len(best) < limit and fruitless < _FRUITLESS_PASSES:
        found = len(best)
        variants = range(first, first + max(_FIRST_VARIANTS, limit // cuts + 1))
        plan = [(cut, variant) for cut in range(cuts) for variant in variants]
        if first == 0 and limit < len(plan):
            plan = sorted(chance.sample(plan, limit))
        for loss in _losses(recording, metadata, seed, plan):
            if loss.key not in known and len(best) < limit:
                known.add(loss.key)
                image = loss.image()
                if len(image.acks) >= best.get(image.digest, (0,))[0]:
                    best[image.digest] = (len(image.acks), loss.cut, loss.variant)
        first += len(variants)
        fruitless = fruitless + 1 if len(best) == found else 0
    chosen = sorted((cut, variant) for _, cut, variant in best.values())
    yield from (loss.image() for loss in _losses(recording, metadata, seed, chosen))


def image_named(recording: Recording, name: str) -> Image:
    """Return the image of this name, the same as when it was first made."""
    metadata, seed, cut, variant = name.split(":")
    return next(_losses(recording, Metadata(metadata), int(seed), [(int(cut), int(variant))])).image()


@dataclass(frozen=True, slots=True)
class _Loss:
    """A power loss: the disk at its cut, and what of the pending changes survived; true until the disk goes on."""

    recording: Recording
    disk: Disk
    name: str
    cut: int
    variant: int
    fate: str
    survivors: Sequence[Change]

    @property
    def key(self) -> tuple[int, int]:
        """Two losses of one recording with the same key leave the same disk with the same acks."""
        return self.recording.last_cut(self.cut), hash(tuple(self.survivors))

    def image(self) -> Image:
        last_cut = self.recording.last_cut(self.cut)
        moment = self.recording.moment(self.cut, last_cut)
        return Image(
            name=self.name,
            story=f"{moment}; of {len(self.disk.pending)} changes then unsynced, {self.fate}",
            acks=tuple(what for position, what in self.recording.acks if position <= last_cut),
            tree=self.disk.image(self.survivors),
        )


def _losses(recording: Recording, metadata: Metadata, seed: int, plan: Sequence[tuple[int, int]]) -> Iterator[_Loss]:
    """Yield the planned losses in one walk over the recording; a plan is cuts and variants, sorted."""
    disk = Disk(recording.root, recording.before, metadata)
    done = 0
    for cut, variant in plan:
        for call in recording.calls[done:cut]:
            disk.perform(call)
        done = cut
        if disk.pending or variant == 0:
            name = f"{metadata.value}:{seed}:{cut}:{variant}"
            fate, survivors = _survivors(disk.pending, variant, random.Random(name), metadata)
            yield _Loss(recording, disk, name, cut, variant, fate, survivors)


def _survivors(
    pending: Sequence[Change], variant: int, chance: random.Random, metadata: Metadata
) -> tuple[str, Sequence[Change]]:
    """Choose what of the pending changes reached the disk: first the two extremes, then by chance."""
    fate = _FATES[variant] if variant < 2 else chance.choice(_FATES[2:])
    survivors = fate(pending, chance) if pending else []
    if metadata is Metadata.ORDERED:
        # Names reach the disk in order, so the ones that survive are the first ones, as many as chance had chosen.
        names = iter([change for change in pending if isinstance(change, Naming)])
        survivors = [next(names) if isinstance(change, Naming) else change for change in survivors]
    return fate.__name__.strip("_").replace("_", " "), survivors


def _all_lost(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    return []


def _all_kept(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    return pending


def _the_first_kept(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    return pending[: chance.randrange(len(pending) + 1)]


def _the_first_kept_and_one_torn(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    kept = chance.randrange(len(pending))
    return [*pending[:kept], *_torn(pending[kept], chance.random(), chance)]


def _some_kept(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    share = chance.random()
    return [change for change in pending if chance.random() < share]


def _all_kept_but_one(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    lost = chance.randrange(len(pending))
    return [*pending[:lost], *pending[lost + 1 :]]


def _one_kept(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    return [pending[chance.randrange(len(pending))]]


def _all_torn(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    share = chance.random()
    return [piece for change in pending for piece in _torn(change, share, chance)]


def _some_only_sizes(pending: Sequence[Change], chance: random.Random) -> Sequence[Change]:
    """A file can have grown although its data never came: the new part reads as zeros."""
    share = chance.random()
    return [_size_of(change) if chance.random() < share else change for change in pending]


_FATES: Final[Sequence[Callable[[Sequence[Change], random.Random], Sequence[Change]]]] = (
    _all_lost,
    _all_kept,
    _the_first_kept,
    _the_first_kept_and_one_torn,
    _some_kept,
    _all_kept_but_one,
    _one_kept,
    _all_torn,
    _some_only_sizes,
)


def _torn(change: Change, share: float, chance: random.Random) -> Sequence[Change]:
    """Return the sectors of a write that arrived; other changes arrive or do not."""
    if not isinstance(change, Write):
        return [change] if chance.random() < share else []
    arrived: list[Change] = [piece for piece in sectors(change) if chance.random() < share]
    return [*arrived, _size_of(change)] if chance.random() < share else arrived


def _size_of(change: Change) -> Change:
    if isinstance(change, Write):
        return Resize(change.file, change.offset + len(change.data), grow=True)
    return change
