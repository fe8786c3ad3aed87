"""Power losses: every disk that one could have left is taken up again and judged by all that was acknowledged."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.testing.disk import Metadata
from holdfast.testing.killer import AtPoint, Killer, TrialFailed
from holdfast.testing.power import Image, Recording, images, record
from tests.chaos import judge
from tests.chaos.program import Report, play
from tests.chaos.world import read_ledger


@dataclass(frozen=True, slots=True)
class Refused:
    """An image whose recovery broke a promise: its name, how it came about, and what was broken."""

    name: str
    story: str
    broken: str


class Loss:
    """One recorded program, and the place where its images are taken up.

    With a `death`, the program is first killed there, and what is recorded is its recovery.
    """

    def __init__(
        self, killer: Killer, folder: Path, names: Sequence[str], *, twin: str = "", death: AtPoint | None = None
    ) -> None:
        self._killer, self._names, self._twin = killer, tuple(names), twin
        self._store, self._ledger = folder / "store", folder / "ledger"
        shutil.rmtree(folder, ignore_errors=True)
        self._store.mkdir(parents=True)
        args = (str(self._store), str(self._ledger), self._names, twin)
        if death is not None:
            killer.run(play, *args, die=death)
        self._before = self._ledger.read_text("utf-8") if death is not None else ""
        self._deaths = 1 if death is None else 2
        self.recording: Recording = record(killer, play, *args, directory=self._store, acks=self._ledger)

    def images(self, *, seed: int, limit: int, metadata: Metadata) -> Iterator[Image]:
        """Yield different disks, from losses all over the recording."""
        return images(self.recording, seed=seed, limit=limit, metadata=metadata)

    def check(self, image: Image) -> None:
        """Take a disk up again, with the world as it was when the power was lost, and judge what becomes of it.

        Raises:
            Broken: a promise was broken.
            TrialFailed: the program did not come to its end.
        """
        shutil.rmtree(self._store)
        image.write_to(self._store)
        self._ledger.write_text(self._before + "".join(f"{line}\n" for line in image.acks), "utf-8")
        outcome = self._killer.run(play, str(self._store), str(self._ledger), self._names, self._twin)
        report: Report = outcome.result()
        judge.check(report, read_ledger(self._ledger), deaths=self._deaths)

    def verdict(self, image: Image) -> Refused | None:
        """Return what became broken when an image was taken up; None if nothing was."""
        try:
            self.check(image)
        except (judge.Broken, TrialFailed) as error:
            return Refused(image.name, image.story, str(error))
        return None
