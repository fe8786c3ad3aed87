"""Processes that all want one checkpoint: each that gets it adds a word and leaves it, or dies; run it as a program."""

import contextlib
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import holdfast as hf
from holdfast.engine.keeper import Keeper
from holdfast.store.value import RunRow
from tests.chaos.looper import lines, write
from tests.rigs.waiting import wait_until

_SECONDS: Final = 120.0
_DIES: Final = 0.2
_PATIENCE_SECONDS: Final = 5.0


def contend(address: str, folder: str, *, seed: str, rounds: int) -> None:
    """Want the checkpoint so many times."""
    chance = random.Random(seed)
    for turn in range(rounds):
        word = f"{seed}.{turn}"
        dies = turn > 0 and chance.random() < _DIES
        try:
            with contextlib.suppress(KeyboardInterrupt), hf.checkpoint.open("one", store=address) as saved:
                _own(saved, folder, word, patient=turn == 0)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise KeyboardInterrupt
        except hf.checkpoint.CheckpointOwned as refused:
            write(folder, what="refused", owner=refused.pid)
        except hf.checkpoint.Lost:
            write(folder, what="lost", word=word)


def _own(saved: hf.checkpoint.Checkpoint[str], folder: str, word: str, *, patient: bool) -> None:
    """Say a word, alone; who is patient stays until somebody else has come for it."""
    place = os.open(Path(folder) / "own", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            write(folder, what="overlap", word=word)
        saved.save([*(saved.load() or []), word])
        write(folder, what="said", word=word)
        known = len(lines(folder))
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not patient or _came(folder, known), seconds=_PATIENCE_SECONDS)
    finally:
        os.close(place)


def _came(folder: str, known: int) -> bool:
    return any(line["what"] in ("refused", "overlap") for line in lines(folder)[known:])


def _impatient() -> None:
    """Whoever wants a checkpoint takes it, whether its owner lives or not."""

    async def has_owner(self: Keeper, row: RunRow) -> bool:
        if row.owner is not None:
            await self.store.void(row.owner, why="impatience")
        return False

    Keeper.has_owner = has_owner  # type: ignore[method-assign]


def play(address: str, folder: Path, *, seed: str, processes: int, rounds: int, twin: str = "") -> Counter[str]:
    """Let processes contend until each has wanted it so often; return what came of it.

    Raises:
        AssertionError: what they said is not what is there, or two had it at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    orders = [
        json.dumps({"address": address, "folder": str(folder), "seed": f"{seed}/{n}", "rounds": rounds, "twin": twin})
        for n in range(processes)
    ]
    command = [sys.executable, "-m", "tests.chaos.contender"]
    running = [subprocess.Popen([*command, order], stderr=subprocess.PIPE, text=True) for order in orders]
    for process in running:
        _, said = process.communicate(timeout=_SECONDS)
        assert process.returncode in (0, -signal.SIGKILL), said
    seen = lines(str(folder))
    broken = list(_broken(seen, address))
    assert not broken, "\n".join(broken)
    return Counter(line["what"] for line in seen)


def _broken(seen: list[dict[str, Any]], address: str) -> Iterator[str]:
    """Yield what is wrong: each word that was acknowledged is there, once, in its order, and nothing else is."""
    yield from (f"{line['word']}: two had it at once" for line in seen if line["what"] == "overlap")
    yield from (f"{line['word']}: its owner was robbed while it lived" for line in seen if line["what"] == "lost")
    said = [line["word"] for line in seen if line["what"] == "said"]
    with hf.checkpoint.open("one", store=address) as saved:
        found = saved.load()
    if found != said:
        yield f"{said} was acknowledged, and {found} is there"


def main() -> None:
    """Begin as one JSON argument says."""
    given = json.loads(sys.argv[1])
    if given.pop("twin"):
        _impatient()
    contend(given.pop("address"), given.pop("folder"), **given)


if __name__ == "__main__":
    main()
