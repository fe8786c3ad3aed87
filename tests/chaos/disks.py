"""Trials on real, small file systems that fill up, have room again, or become read-only under a program."""

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import holdfast as hf
from holdfast.cli import main
from holdfast.core.errors import StoreError
from holdfast.testing.killer import Killer, TrialFailed
from tests.chaos.campaign import Result, Tick
from tests.chaos.judge import Broken
from tests.chaos.kills import scratch

NEEDS: Final = "the campaign of the disks makes and mounts file systems, which needs Linux, root, mkfs.ext4 and e2fsck"

Fault = Literal["full before", "full during", "full for a while", "read-only before", "read-only during"]
Before = Literal["nothing", "closed", "killed"]

_FAULTS: Final[tuple[Fault, ...]] = (
    "full before", "full during", "full for a while", "read-only before", "read-only during",
)  # fmt: skip
_LEFT_KB: Final = (0, 0, 1, 2, 4, 8, 16, 24, 32, 40, 64, 96, 128, 200, 300)
_SIZES: Final = (100, 3_000, 8_000, 100_000)
"""What steps return, in turn; the last is a blob."""
_LARGE_BYTES: Final = 1_000_000
"""What each step of a large trial returns, so that the log is taken into the file in the middle of the run."""
_STEPS: Final = 12
_LARGE_STEPS: Final = 24
_IMAGE_MB, _LARGE_IMAGE_MB = 12, 56
_TIMEOUT_SECONDS: Final = 40.0
_MOST_FAILURES: Final = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """One trial: what is done to the disk, when, and on which kind of file system."""

    fault: Fault
    before: Before
    """What the program finds: no store, one that was closed, or one whose process was killed."""
    block_bytes: int
    left_kb: int
    """How much room is left when the disk is filled."""
    step: int
    """Before which step the disk is struck, if it is during the run."""
    large: bool

    @classmethod
    def of_seed(cls, seed: str, number: int) -> "Plan":
        """Return the trial that a seed stands for; the faults come in turn."""
        chance = random.Random(seed)
        large = chance.random() < 0.15
        left = chance.choice(_LEFT_KB) * (chance.choice((1, 16, 100)) if large else 1)
        return cls(
            fault=_FAULTS[number % len(_FAULTS)],
            before=chance.choice(("nothing", "closed", "killed")),
            block_bytes=chance.choice((1024, 4096)),
            left_kb=left,
            step=chance.randrange(_LARGE_STEPS if large else _STEPS),
            large=large,
        )

    @property
    def steps(self) -> int:
        """How many steps the run has."""
        return _LARGE_STEPS if self.large else _STEPS


# The program, which strikes its own disk: so it is struck at a place, not at a time.


def performed(ledger: str, number: int, size: int) -> str:
    """Act, and be witnessed on another file system."""
    _note(ledger, f"performed {number}")
    return "x" * size


def _note(ledger: str, line: str) -> None:
    with open(ledger, "a") as file:
        file.write(f"{line}\n")


_strike_at: dict[int, tuple[str, int]] = {}


@hf.durable
async def work(ctx: hf.Context, ledger: str, steps: int, large: bool) -> list[int]:
    """Perform steps of several sizes, every fourth of them `once`."""
    lengths = []
    for number in range(steps):
        if number in _strike_at:
            _strike(*_strike_at.pop(number))
        size = _LARGE_BYTES if large else _SIZES[number % len(_SIZES)]
        try:
            value = await ctx.step(performed, ledger, number, size, effect="once" if _is_once(number) else "repeat")
            lengths.append(len(value))
        except hf.InDoubt:
            lengths.append(-number)
        _note(ledger, f"acknowledged {number} {lengths[-1]}")
    return lengths


def _is_once(number: int) -> bool:
    return number % 4 == 1


def _strike(folder: str, left_kb: int) -> None:
    if left_kb < 0:
        device = os.path.basename(os.path.realpath(f"/sys/dev/block/{_device(folder)}"))
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("struck by a trial")
    else:
        fill(Path(folder), left_kb << 10)


def _device(folder: str) -> str:
    number = os.stat(folder).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def fill(folder: Path, left_bytes: int) -> None:
    """Leave so much room, or as nearly as the file system lets."""
    room = os.statvfs(folder)
    most, chunk = room.f_bavail * room.f_frsize - left_bytes, 1 << 20
    file = os.open(folder / "fill", os.O_WRONLY | os.O_CREAT)
    try:
        at = 0
        while at < most and chunk >= room.f_frsize:
            try:
                os.posix_fallocate(file, at, min(chunk, most - at))
                at += min(chunk, most - at)
            except OSError:
                chunk //= 2
    finally:
        os.close(file)


def _make_room(folder: str) -> None:
    os.unlink(f"{folder}/fill")
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(place)  # only then are the blocks free
    finally:
        os.close(place)


def prepare_store(folder: str, ledger: str, killed: bool) -> None:
    """Leave a store behind in which a run has ended; closed, or by a process that has died."""

    async def prepared() -> None:
        async with hf.open(_address(folder), hf.App(work)) as runtime:
            await runtime.run(work, ledger, 3, False, key="before")
            if killed:
                os._exit(9)

    asyncio.run(prepared())


def _address(folder: str) -> str:
    return f"sqlite:///{folder}/a.db"


async def attempt(folder: str, ledger: str, plan: Plan, struck: bool) -> str:
    """Run the program once; return how it went, in words."""
    if struck and plan.fault.endswith(("during", "while")):
        _strike_at[plan.step] = (folder, -1 if plan.fault == "read-only during" else plan.left_kb)
    try:
        async with hf.open(_address(folder), hf.App(work)) as runtime:
            run = await runtime.start(work, ledger, plan.steps, plan.large, key="work")
            worker = runtime._worker
            assert worker is not None
            waiting = asyncio.ensure_future(run.result())
            either: set[asyncio.Future[Any]] = {waiting, worker.trouble}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            struck = not waiting.done() or waiting.exception() is not None
            if struck and plan.fault == "full for a while":
                waiting.cancel()
                _make_room(folder)
                # Asked again: a question that struck the full disk was refused, which is no matter of the run's.
                return f"went on: result {await run.result()}"
            if not waiting.done():
                waiting.cancel()
                raise worker.trouble.result()
            return f"result {waiting.result()}"
    except StoreError as error:
        return f"{error.code}: {error}"


def command(folder: str, *words: str) -> int:
    """Run one of Holdfast's commands and return its exit status."""
    try:
        main([*words, "--store", _address(folder)])
    except SystemExit as ended:
        return int(ended.code or 0)


# The file system


class Disk:
    """An ext4 file system in a file, mounted."""

    def __init__(self, image: Path, place: Path) -> None:
        self._image, self.place = image, place

    def freeze(self) -> None:
        """Make it read-only."""
        _call("mount", "-o", "remount,ro", str(self.place))

    def mend(self, plan: Plan) -> None:
        """Take the fault away."""
        match plan.fault:
            case "read-only before":
                _call("mount", "-o", "remount,rw", str(self.place))
            case "read-only during":
                _call("umount", str(self.place))
                # A copy: where anything still holds the old mount, the same image would come back as it was.
                mended = self._image.with_suffix(".mended")
                shutil.copy(self._image, mended)
                # 1 says that it mended something.
                _call("e2fsck", "-fy", str(mended), fine=(0, 1))
                _mount(mended, self.place)
            case _:
                (self.place / "fill").unlink(missing_ok=True)


@contextmanager
def mounted(folder: Path, *, mb: int, block_bytes: int) -> Iterator[Disk]:
    """Give a fresh file system, and leave nothing of it behind."""
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(mb << 20)
    try:
        _call("mkfs.ext4", "-q", "-m", "0", "-N", "64", "-b", str(block_bytes), str(image))
        _mount(image, place)
        yield Disk(image, place)
    finally:
        # A program that was interrupted may still be there: then it goes when that does.
        if place.is_mount() and subprocess.run(["umount", place], capture_output=True).returncode:
            _call("umount", "--lazy", str(place))
        place.rmdir()


def _mount(image: Path, place: Path) -> None:
    _call("mount", "-o", "loop,errors=remount-ro", str(image), str(place))


def _call(*words: str, fine: tuple[int, ...] = (0,)) -> None:
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode not in fine:
        raise OSError(f"{' '.join(words)}: {ended.stderr.strip() or ended.stdout.strip()}")


def cannot_mount() -> str | None:
    """Say why this machine cannot make the trials' file systems; None if it can."""
    if not sys.platform.startswith("linux"):
        return f"{NEEDS}: this is {sys.platform}"
    try:
        with scratch() as folder, mounted(folder, mb=_IMAGE_MB, block_bytes=4096):
            return None
    except OSError as error:
        return f"{NEEDS}: {error}"


# The trials


@dataclass(frozen=True, slots=True)
class _Stage:
    """A killer and one trial's places."""

    killer: Killer
    disk: Disk
    ledger: Path
    plan: Plan

    def play(self) -> str:
        """Strike, look, mend, see the run to its end, and judge; return what the struck program said.

        Raises:
            Broken: a promise was broken.
            TrialFailed: a program ended otherwise than in words.
        """
        self._set_up()
        said = self._attempt(struck=True)
        self._check_words(said)
        if not said.startswith(("result", "went on")):
            self._check_looking()
        self.disk.mend(self.plan)
        again = self._attempt(struck=False)
        if not again.startswith("result"):
            raise Broken(f"{said}; and with the fault gone: {again}")
        self._check_ledger(again)
        status = self.killer.run(command, str(self.disk.place), "verify").result()
        if status != 0:
            raise Broken(f"{said}; holdfast verify ended with {status}")
        return said

    def _set_up(self) -> None:
        folder, plan = str(self.disk.place), self.plan
        if plan.before != "nothing":
            aside = str(self.ledger.with_suffix(".before"))
            outcome = self.killer.run(prepare_store, folder, aside, plan.before == "killed")
            if outcome.exit_status != (9 if plan.before == "killed" else 0):
                raise TrialFailed(f"the store could not be made: {outcome.error or outcome.output}")
        if plan.fault == "full before":
            fill(self.disk.place, plan.left_kb << 10)
        if plan.fault == "read-only before":
            self.disk.freeze()

    def _attempt(self, *, struck: bool) -> str:
        said: str = self.killer.run(attempt, str(self.disk.place), str(self.ledger), self.plan, struck).result()
        return said

    def _check_words(self, said: str) -> None:
        if said.startswith(("result", "went on: result")) and not self.plan.fault.startswith("read-only before"):
            return
        words: tuple[str, ...] = (
            ("is full", "No space left") if self.plan.fault.startswith("full") else ("read-only", "Read-only")
        )
        if self.plan.fault == "read-only during":
            # What strikes first there is a failing journal of the file system's own.
            words = (*words, "disk I/O error")
        clear = said.startswith("store_unavailable: ") and f"{self.disk.place}/a.db" in said
        if self.plan.fault == "full for a while" or not clear or not any(word in said for word in words):
            raise Broken(f"said: {said}")

    def _check_looking(self) -> None:
        """Reading commands work on the struck disk or say that the store is unavailable; never anything else."""
        if not (self.disk.place / "a.db").exists():
            return
        fine = (0,) if self.plan.fault == "read-only before" else (0, 5)
        for words in (("ls",), ("verify",)):
            outcome = self.killer.run(command, str(self.disk.place), *words)
            if outcome.result() not in fine:
                raise Broken(f"holdfast {words[0]} on the struck disk ended with {outcome.value}: {outcome.output}")

    def _check_ledger(self, said: str) -> None:
        lines = self.ledger.read_text().splitlines()
        for number in range(self.plan.steps):
            own = [line for line in lines if line.split()[1] == str(number)]
            acts = own.count(f"performed {number}")
            yes = [line for line in own if line.startswith("acknowledged")]
            if _is_once(number) and acts > 1:
                raise Broken(f"step {number} is `once` and was performed {acts} times; {said[:200]}")
            if not acts and not _is_once(number):
                raise Broken(f"step {number} was never performed; {said[:200]}")
            if len(set(yes)) != 1:
                raise Broken(f"step {number} was acknowledged as {sorted(set(yes))}")
            if f"performed {number}" in own[own.index(yes[0]) :]:
                raise Broken(f"step {number} was acknowledged and then performed again")


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Play so many trials, each on a file system of its own, which must be possible (`cannot_mount`)."""
    result, started = Result(), time.monotonic()
    with Killer(preload=["holdfast.store.sqlite", __name__], timeout_seconds=_TIMEOUT_SECONDS) as killer:
        for number in range(wanted):
            plan = Plan.of_seed(f"{seed}/{number}", number)
            try:
                said = _play(killer, plan)
            except (Broken, TrialFailed) as error:
                result.failures.append(f"seed {seed}/{number}, {plan}: {error}")
                if len(result.failures) >= _MOST_FAILURES:
                    break
            else:
                struck = not said.startswith("result")
                result.add(trials=1, struck=int(struck), went_on_by_themselves=int(said.startswith("went on")))
                result.add(**{plan.fault.replace(" ", "_").replace("-", "_"): int(struck)})
            tick(1)
    result.seconds = time.monotonic() - started
    return result


def _play(killer: Killer, plan: Plan) -> str:
    with scratch() as folder:
        mb = _LARGE_IMAGE_MB if plan.large else _IMAGE_MB
        with mounted(folder, mb=mb, block_bytes=plan.block_bytes) as disk:
            return _Stage(killer, disk, folder / "ledger", plan).play()
