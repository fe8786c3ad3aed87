"""One bit flipped anywhere in a store's files: the same answers, a named run, or a refusal, and nothing else."""

import random
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

from holdfast.testing.killer import Killer, TrialFailed
from tests.chaos.archive import Said, ask, keys_of, make
from tests.chaos.campaign import Result, Shared, Tick, in_two
from tests.chaos.kills import scratch

SIZES: Final = (1, 3, 8)
"""How many runs of each kind there are in the file, and as many in the log."""
_IN_LOG: Final = 0.2
_UNCERTAIN_COMMITS: Final = 3
"""At the end of a log a flipped bit cannot be told from what a crash leaves."""
_TIMEOUT_SECONDS: Final = 60.0
_LOG_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24


def new_killer() -> Killer:
    """Return a server for these trials."""
    return Killer(preload=("tests.chaos.archive", "structlog"), timeout_seconds=_TIMEOUT_SECONDS)


@dataclass(frozen=True, slots=True)
class Archive:
    """A store as a killed process left it, with its log or with all of it in the file; nobody may change it."""

    folder: Path
    size: int

    @property
    def log(self) -> Path:
        """The write-ahead log."""
        return self.folder / "store.db-wal"

    def copy(self, to: Path) -> None:
        """Copy the store, its workers' locks and its ledger."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.folder, to)


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of one file."""

    file: str
    place: int
    bit: int

    def __str__(self) -> str:
        return f"byte {self.place:,} of {self.file}, bit {self.bit}"

    def apply(self, folder: Path) -> None:
        """Flip it in a store that nobody has open."""
        with (folder / self.file).open("r+b") as file:
            file.seek(self.place)
            [byte] = file.read(1)
            file.seek(self.place)
            file.write(bytes([byte ^ (1 << self.bit)]))


def build(killer: Killer, folder: Path, size: int) -> tuple[Archive, Archive]:
    """Make an archive whose process dies with half of the work in the log, and its twin that has all in the file."""
    logged, filed = Archive(folder / "logged", size), Archive(folder / "filed", size)
    logged.folder.mkdir(parents=True)
    path, ledger = str(logged.folder / "store.db"), str(logged.folder / "ledger")
    keys = keys_of(size)
    half = len(keys) // 2
    killer.run(make, path, ledger, keys[:half], False).result()
    died = killer.run(make, path, ledger, keys[half:], True)
    if not died.killed:
        raise TrialFailed(f"it should have died: {died}")
    logged.copy(filed.folder)
    apsw.Connection(str(filed.folder / "store.db")).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    return logged, filed


def certain_bytes(log: bytes) -> int:
    """Return how much of a log stands before its last three commits."""
    page_bytes, salt = int.from_bytes(log[8:12], "big"), log[16:24]
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    ends = [
        begin + frame_bytes
        for begin in range(_LOG_HEADER_BYTES, len(log) - frame_bytes + 1, frame_bytes)
        if log[begin + 8 : begin + 16] == salt and struct.unpack_from(">I", log, begin + 4)[0]
    ]
    return ends[-1 - _UNCERTAIN_COMMITS]


def draw(seed: str, archives: list[tuple[Archive, Archive]]) -> tuple[Archive, Flip]:
    """Return the archive and the flip that a seed stands for."""
    chance = random.Random(seed)
    logged, filed = chance.choice(archives)
    bit = chance.randrange(8)
    if chance.random() < _IN_LOG:
        return logged, Flip(logged.log.name, chance.randrange(certain_bytes(logged.log.read_bytes())), bit)
    archive = chance.choice((logged, filed, filed))
    file = archive.folder / "store.db"
    return archive, Flip(file.name, chance.randrange(file.stat().st_size), bit)


class Stage:
    """A place for one flip after another."""

    def __init__(self, killer: Killer, folder: Path, *, twin: str = "") -> None:
        self._killer, self.folder, self._twin = killer, folder, twin

    def play(self, archive: Archive, flip: Flip | None) -> Said:
        """Return what a flipped copy of an archive says."""
        archive.copy(self.folder)
        if flip is not None:
            flip.apply(self.folder)
        args = (str(self.folder / "store.db"), str(self.folder / "ledger"), archive.size, self._twin)
        outcome = self._killer.run(ask, *args)
        try:
            said: Said = outcome.result()
        except TrialFailed as error:
            return Said(wrong=[str(error)])
        return said


@contextmanager
def archives(killer: Killer, sizes: Sequence[int] = SIZES) -> Iterator[list[tuple[Archive, Archive]]]:
    """Give archives of these sizes."""
    with scratch() as folder:
        yield [build(killer, folder / str(size), size) for size in sizes]


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Flip `wanted` bits, each in a fresh copy."""
    shared, started = Shared(tick), time.monotonic()
    lock = threading.Lock()
    with new_killer() as maker, archives(maker) as made:

        def work(killer: Killer, folder: Path) -> None:
            stage = Stage(killer, folder)
            while not shared.hopeless and (drawn := shared.draw()) <= wanted:
                archive, flip = draw(f"{seed}/{drawn}", made)
                said = stage.play(archive, flip)
                failure = None
                if said.wrong:
                    with lock:
                        failure = f"{flip}: {'; '.join(said.wrong)}; the store is kept in {_kept(archive, flip)}"
                shared.done(1, failure, **_counts(flip, said))

        in_two(work, new_killer)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _counts(flip: Flip, said: Said) -> dict[str, int]:
    harmless = not (said.refused or said.named or said.wrong)
    return {
        "flips": 1,
        "in_log": int(flip.file.endswith("-wal")),
        "same_answers": int(harmless),
        "named_runs": int(bool(said.named) and not said.refused),
        "refused": int(bool(said.refused)),
        "runs_asked": said.same + len(said.named),
    }


def _kept(archive: Archive, flip: Flip) -> Path:
    """Keep a flipped archive, as it was before anybody opened it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-flip-")) / "archive"
    archive.copy(folder)
    flip.apply(folder)
    return folder
