"""Check many disk images, each in a process of its own, a few at a time."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from holdfast.testing.killer import Killer
from holdfast.testing.power import Image

Check = Callable[[str, tuple[str, ...]], object]
"""Opens the image in a directory and raises if anything acknowledged is missing or anything is broken."""


class ImageFailed(AssertionError):
    """A check refused an image that a power loss could have left."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An image that the check refused, and why."""

    image: Image
    error: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What checking many images found; `disks` counts the different contents among the `images`."""

    images: int
    disks: int
    refusals: Sequence[Refusal]
    seconds: float

    def passed(self) -> None:
        """Do nothing if every image was fine.

        Raises:
            ImageFailed: some were not; the first is told in full.
        """
        if self.refusals:
            first = self.refusals[0]
            raise ImageFailed(
                f"{len(self.refusals)} of {self.images} images refused; {first.image.name}: {first.image.story}; "
                f"{len(first.image.acks)} acks\n{first.error}"
            )


class _Shared:
    """The images still to be checked and what was found so far, shared by the threads."""

    def __init__(self, images: Iterable[Image], stop_after: int | None) -> None:
        self._images, self._stop_after = iter(images), stop_after
        self._lock = threading.Lock()
        self.checked = 0
        self.digests: set[bytes] = set()
        self.refusals: list[Refusal] = []

    def __iter__(self) -> Iterator[Image]:
        return self

    def __next__(self) -> Image:
        with self._lock:
            if self._stop_after is not None and len(self.refusals) >= self._stop_after:
                raise StopIteration
            image = next(self._images)
            self.checked += 1
            self.digests.add(image.digest)
            return image


def inspect_images(
    images: Iterable[Image], check: Check, *, killers: Sequence[Killer], stop_after: int | None = None
) -> Inspection:
    """Run `check(directory, acks)` on each image in a freshly forked process, as many at a time as there are killers.

    `check` is a function at the top of an importable module; a check that raises, dies or gets stuck refuses its image.
    After `stop_after` refusals no further image is begun.
    """
    started = time.monotonic()
    shared = _Shared(images, stop_after)
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch,
        ThreadPoolExecutor(len(killers)) as threads,
    ):
        work = [
            threads.submit(_inspect, shared, check, killer, Path(scratch, str(number)))
            for number, killer in enumerate(killers)
        ]
        for each in work:
            each.result()
    return Inspection(shared.checked, len(shared.digests), shared.refusals, time.monotonic() - started)


def _inspect(shared: _Shared, check: Check, killer: Killer, place: Path) -> None:
    for image in shared:
        image.write_to(place)
        outcome = killer.run(check, str(place), image.acks)
        if outcome.exit_status != 0:
            error = outcome.error or outcome.output or f"ended with {outcome.exit_status}"
            shared.refusals.append(Refusal(image, "stuck\n" + error if outcome.stuck else error))
        shutil.rmtree(place)
