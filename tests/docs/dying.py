"""A program of one step, for the table of guarantees: what the step does is noted outside of its store."""

import json
import os
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.store import point

_ledger: Path
_returned = False


def _note(what: str, key: str) -> None:
    file = os.open(_ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, json.dumps({"what": what, "key": key}).encode() + b"\n")
    os.close(file)


async def act(step: hf.Step[None]) -> str:
    """Note that the step was called, and then that it happened."""
    global _returned
    _note("called", step.idempotency_key)
    point.reached("the effect begins")
    _note("done", step.idempotency_key)
    point.reached("the effect is under way")
    _returned = True
    return "acted"


@hf.durable
async def tale(ctx: hf.Context, effect: str) -> str:
    """Take the step, and say whether it is in doubt."""
    point.reached("the step is asked for")
    policy: Any = effect
    try:
        value = await ctx.step(act, effect=policy)
    except hf.InDoubt:
        return "in doubt"
    point.reached("the result is there")
    return value


def play(folder: str, effect: str) -> str:
    """Be one process that runs the program, to its end or its death."""
    global _ledger
    _ledger = Path(folder, "ledger")
    passed = point.reached

    def reached(name: str) -> None:
        passed(name)
        if _returned and name == "before":
            passed("the result is about to be written")

    point.reached = reached
    return hf.run(tale, effect, key="tale", store=f"sqlite:///{folder}/store.db")
