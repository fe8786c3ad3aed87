"""A loop of somebody's own with a checkpoint, as the program of a trial: it saves, acts, edits its messages, dies."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import holdfast as hf
from holdfast import events as ev
from holdfast.checkpoint import Checkpoint
from holdfast.core import splice
from holdfast.core.checkpoint import effect_step
from holdfast.core.codec import digest
from holdfast.core.entry import ErrorInfo
from holdfast.core.ids import CHECKPOINT_NAME
from holdfast.engine import checkpoint as engine
from holdfast.engine import ledger as writing
from holdfast.store import point

TURNS: Final = 6
_TEXT: Final = "x" * 200
Line = dict[str, Any]


class Look(NamedTuple):
    """What a store tells of the one checkpoint in it."""

    status: str
    opened: Sequence[int]
    """The attempts, as they were recorded."""
    saved_bytes: int
    """How much all its saves are together."""
    findings: Sequence[str]
    left: Sequence[str]
    """Workers that have not said goodbye."""


def write(folder: str, **line: Any) -> None:
    """Add a line to what is known outside of the program, whole or not at all."""
    ledger = os.open(Path(folder) / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(ledger, json.dumps(line).encode() + b"\n")
    os.close(ledger)


def lines(folder: str) -> list[Line]:
    """Return what is known outside of the program, in order."""
    ledger = Path(folder) / "ledger"
    return [json.loads(line) for line in ledger.read_text("utf-8").splitlines()] if ledger.exists() else []


def act(folder: str, turn: int) -> str:
    """Do something to the world, which it remembers."""
    point.reached("acts")
    write(folder, what="did", turn=turn)
    point.reached("acted")
    return f"result {turn}"


def loop(address: str, folder: str, twin: str = "") -> list[Any]:
    """Take a few turns, from wherever they were left; return the messages."""
    TWINS[twin]()
    begun = any(line["what"] == "began" for line in lines(folder))
    if begun and [left.id for left in hf.checkpoint.interrupted(store=address)] != ["loop"]:
        write(folder, what="ended")  # it had come to its end before it died
        return []
    with hf.checkpoint.open("loop", store=address) as saved:
        messages = saved.load()
        write(folder, what="began", attempt=saved.attempt, messages=messages, at=[saved.iteration, saved.phase])
        messages = messages or [{"role": "system", "time": -1, "text": _TEXT}]
        _settle(saved, folder)
        first = (saved.iteration or 0) + (saved.phase == "tools")
        for turn in range(first, TURNS):
            if (saved.iteration, saved.phase) != (turn, "model"):
                messages.append({"role": "assistant", "call": turn, "text": _TEXT})
                _save(saved, folder, messages, turn, "model")
            messages.append({"role": "tool", "text": saved.effect(f"call {turn}", act, folder, turn)})
            messages[0] = {**messages[0], "time": turn}
            if turn == TURNS // 2:
                messages[1:4] = [{"role": "user", "summary": turn}]
            _save(saved, folder, messages, turn, "tools")
    write(folder, what="ended")
    return messages


def _save(saved: Checkpoint[Any], folder: str, messages: list[Any], turn: int, phase: str) -> None:
    saved.save(messages, turn, phase)
    write(folder, what="saved", at=[turn, phase], messages=messages)


def _settle(saved: Checkpoint[Any], folder: str) -> None:
    """Look at the world for what was under way."""
    done = {f"call {line['turn']}": line["turn"] for line in lines(folder) if line["what"] == "did"}
    for key in list(saved.doubts):
        saved.resolve(key, f"result {done[key]}" if key in done else hf.NOT_DONE)


async def look(address: str) -> Look:
    """Return what is there at the end."""
    async with hf.open(address, work=False) as runtime:
        runs = await runtime.runs(name=CHECKPOINT_NAME)
        assert len(runs) == 1, f"there are {len(runs)} lives of one checkpoint"
        events = [event async for event in (await runtime.get(runs[0].id)).events(follow=False)]
        findings = [str(finding) async for finding in runtime.client.verify()]
        left = [worker.id for worker in await runtime.client.workers()]
    saves = [event for event in events if isinstance(event, ev.CheckpointSaved)]
    opened = [event.attempt for event in events if isinstance(event, ev.CheckpointOpened)]
    size = sum(len(bytes(save.raw)) for save in saves)
    return Look(str(runs[0].status), opened, size, findings, left)


# What is broken in a twin


def _whole() -> None:
    """Every save writes the whole transcript."""

    def all_of(old: Sequence[Any], new: Sequence[Any]) -> list[splice.Splice]:
        return [splice.Splice(0, len(old), new)]

    writing.splices = all_of  # type: ignore[attr-defined]


def _no_intent() -> None:
    """An effect is performed before anybody can know of it."""

    async def begin(self: Any, key: str, args: Sequence[Any]) -> engine.Intent | engine.Known:
        intent = engine.Intent(effect_step(key), digest(list(args)))
        known = self._ledger.record.done.get(intent.step)
        return intent if known is None else engine.Known(known.raw)

    engine.AsyncCheckpoint.begin_effect = begin  # type: ignore[method-assign]


def _early() -> None:
    """A save is acknowledged before it is on disk, and written with the next one."""
    flush = engine.AsyncCheckpoint.flush

    async def soon(self: Any) -> None:
        if self._ledger.draft.phase == "tools":
            await flush(self)

    engine.AsyncCheckpoint.flush = soon  # type: ignore[method-assign]


def _forgets() -> None:
    """What was under way at a death is taken for not done."""
    engine.AsyncCheckpoint._opening = _opening  # type: ignore[method-assign]


def _opening(self: Any, version: str) -> Any:
    for entry in _SOUND_OPENING(self, version):
        if not isinstance(entry, ev.StepDoubted):
            yield entry
    for step, known in self._ledger.record.state.open.items():
        yield ev.StepFailed(step=step, digest=known.digest, error=ErrorInfo(type="Twin", message="not done"))


_SOUND_OPENING: Final = engine.AsyncCheckpoint._opening
TWINS: Final[dict[str, Callable[[], None]]] = {
    "": lambda: None, "whole": _whole, "no_intent": _no_intent, "early": _early, "forgets": _forgets,
}  # fmt: skip
