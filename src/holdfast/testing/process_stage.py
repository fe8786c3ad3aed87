"""Where trials are played in processes of their own: on a file, with a real SIGKILL around each of its writes."""

import asyncio
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from holdfast.core.errors import InvalidInput
from holdfast.core.ids import RunId
from holdfast.engine import witness
from holdfast.engine.app import App
from holdfast.engine.function import Durable
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Lease, RunFilter
from holdfast.testing.clock import MovingClock
from holdfast.testing.forkserver import Target
from holdfast.testing.killer import AtPoint, Killer
from holdfast.testing.life import Ended, Lived, Stuck, live, look, recorded_steps
from holdfast.testing.outside import Outside
from holdfast.testing.stage import Played, create


@dataclass(frozen=True, slots=True)
class _Program:
    """A durable function and its app, by where they stand; another process finds them there."""

    function: Target
    app: Target | None

    def load(self) -> App:
        app: Any = self.app.load() if self.app is not None else App()
        function: Any = self.function.load()
        app.add(function)
        return app  # type: ignore[no-any-return]


class ProcessStage:
    """Trials of one program, one after the other, each in a folder of its own."""

    def __init__(
        self,
        what: Durable[Any, ...],
        args: Sequence[Any],
        app: App,
        others: Outside,
        *,
        alone: bool,
        seconds: float,
    ) -> None:
        function = _place_of(what)
        self._program = _Program(function, None if alone else _place_of(app))
        self._others, self._seconds = others, seconds
        memory = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory if memory.is_dir() else None)
        self._origin = Path(self._folder.name, "origin")
        self._origin.mkdir()
        self._run = asyncio.run(_create(self._origin, what, args, app))
        known = [function.module] if importlib.util.find_spec(function.module) is not None else []
        preload = [__name__, "structlog", *known]
        self._killer = Killer(preload=preload, seam="holdfast.store.point:reached", timeout_seconds=2 * seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._killer.close()
        self._folder.cleanup()

    def clear(self) -> None:
        """Let go of what the trial before left."""
        shutil.rmtree(Path(self._folder.name, "trial"), ignore_errors=True)

    def trial(self, nth: int | None) -> Played:
        """Let the program die at its nth point, if there is one, and go on to its end."""
        place = Path(self._folder.name, "trial")
        shutil.copytree(self._origin, place)
        ledgers, crash = [place / "1.jsonl"], None
        outcome = self._play(place, ledgers[0], AtPoint(nth) if nth is not None else None)
        if outcome.killed:
            crash = f"at point {nth}, {outcome.last} a write"
            ledgers.append(place / "2.jsonl")
            outcome = self._play(place, ledgers[1], None)
        lives = [_read(ledger) for ledger in ledgers]
        ended: Ended = outcome.result()
        performed = [step for lived in lives for owner, step in lived.performed if owner == self._run]
        counts = {step: performed.count(step) for step in performed}
        return replace(ended, performed=counts, crash=crash), lives

    def _play(self, place: Path, ledger: Path, die: AtPoint | None) -> Any:
        store = str(place / "store.db")
        return self._killer.run(
            play, self._program, store, self._run, str(ledger), self._others, self._seconds, die=die
        )


async def _create(folder: Path, what: Durable[Any, ...], args: Sequence[Any], app: App) -> RunId:
    store = await SqliteStore.open(str(folder / "store.db"), clock=MovingClock())
    try:
        return await create(store, what, args, app)
    finally:
        await store.close()


async def play(program: _Program, path: str, run: RunId, ledger: str, others: Outside, seconds: float) -> Ended:
    """Be one life; what it finds and performs is written where the parent reads it, even if it is killed."""
    app, clock = program.load(), MovingClock()
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def performed(lease: Lease, step: str, attempt: int) -> None:
        os.write(file, json.dumps(["performed", lease.row.run, step]).encode() + b"\n")

    witness.performed = performed
    store = await SqliteStore.open(path, clock=clock)
    async for owner, step in recorded_steps(store):
        os.write(file, json.dumps(["recorded", owner, step]).encode() + b"\n")
    for row in await store.list(RunFilter()):
        clock.advance_to(max(clock(), row.updated_at))
    stuck = None
    try:
        await live(store, app, run, clock, others, seconds=seconds)
    except Stuck as error:
        stuck = str(error)
    store = await SqliteStore.open(path, clock=clock)
    found = await look(store, run, (), None)
    await store.close()
    return found if stuck is None else replace(found, reason=stuck)


def _read(ledger: Path) -> Lived:
    lived = Lived()
    for line in ledger.read_text("utf-8").splitlines() if ledger.exists() else ():
        what, run, step = json.loads(line)
        (lived.performed if what == "performed" else lived.recorded).append((run, step))
    return lived


def _place_of(thing: Any) -> Target:
    """Return where a module holds `thing`.

    Raises:
        InvalidInput: no module does, or it is the script itself.
    """
    first = sys.modules.get(getattr(thing, "__module__", ""))
    for module in [first, *list(sys.modules.values())]:
        for name, value in list(vars(module).items()) if module is not None else ():
            if value is thing and module is not None and module.__name__ != "__main__":
                return Target(module.__name__, getattr(module, "__file__", None), name)
    raise InvalidInput(f"with processes=True, {thing!r} must stand at the top of a module that can be imported")
