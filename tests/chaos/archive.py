"""A store with runs in every state, left behind by a process that is killed, and another that asks for all of them."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

import holdfast as hf
from holdfast.client import reading as client_reading
from holdfast.core.errors import Damaged, HoldfastError, StoreError
from holdfast.engine.function import Durable
from holdfast.journal import journal
from holdfast.store import rows
from holdfast.store.sqlite import SqliteStore, leasing, lookup, reading
from holdfast.store.value import RunRow
from holdfast.stream import feed

WAIT_SECONDS: Final = 20.0
"""A run that has not answered by then waits without end."""
_DAY_SECONDS: Final = 86_400.0
_ledger: Path
_building = False


def _note(what: str, **facts: str) -> None:
    """Append to the ledger, which is outside of the store and which no death takes back."""
    with _ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"what": what, **facts}) + "\n")


async def look(order: str, part: int) -> str:
    """Return something that fills part of a page."""
    _note("did", step=f"look {part}", order=order)
    return f"{order}, part {part}; " * 20


def pay(order: str) -> str:
    """Do what must not be done twice."""
    _note("did", step="pay", order=order)
    return f"paid {order}"


def ship(order: str) -> str:
    """Do another thing that must not be done twice."""
    _note("did", step="ship", order=order)
    return f"shipped {order}"


def sign(order: str) -> str:
    """Leave it unknown whether it was done."""
    _note("did", step="sign", order=order)
    raise ConnectionError("cut off")


async def call_back(order: str) -> str:
    """Fail, worth another attempt tomorrow."""
    _note("did", step="call_back", order=order)
    raise ConnectionError("nobody is there")


async def gate() -> str:
    """Hold the run here while the store is made."""
    if _building:
        await asyncio.get_running_loop().create_future()
    return "open"


@hf.durable
async def ended(ctx: hf.Context, order: str) -> dict[str, Any]:
    """Complete."""
    parts = [await ctx.step(look, order, part) for part in range(2)]
    return {"parts": parts, "paid": await ctx.step(pay, order, effect="once")}


@hf.durable
async def failed(ctx: hf.Context, order: str) -> None:
    """Fail."""
    await ctx.step(pay, order, effect="once")
    raise ValueError(f"{order} is no good")


@hf.durable
async def large(ctx: hf.Context, order: str) -> str:
    """Complete, with a result in a blob."""
    return order * (70_000 // len(order)) + await ctx.step(pay, order, effect="once")


@hf.durable
async def tomorrow(ctx: hf.Context, order: str) -> str:
    """Rest until a retry that is far away."""
    retry = hf.Retry(attempts=3, first=_DAY_SECONDS, most=_DAY_SECONDS)
    return await ctx.step(call_back, order, retry=retry)


@hf.durable
async def doubted(ctx: hf.Context, order: str) -> str:
    """Wait in doubt for a person."""
    return await ctx.step(sign, order, effect="once", in_doubt="wait")


@hf.durable
async def unfinished(ctx: hf.Context, order: str) -> dict[str, str]:
    """Be interrupted half way."""
    part = await ctx.step(look, order, 0)
    paid = await ctx.step(pay, order, effect="once")
    await ctx.step(gate, effect="keyed")
    return {"part": part, "paid": paid, "shipped": await ctx.step(ship, order, effect="once")}


APP: Final = hf.App(ended, failed, large, tomorrow, doubted, unfinished, version="1")
KINDS: Final[Mapping[str, Durable[Any, [str]]]] = {
    one.name: one for one in (ended, failed, large, tomorrow, doubted, unfinished)
}
_TO_DO: Final = frozenset({("unfinished", "ship")})
"""What is not recorded yet; any other effect that is seen again is one of an acknowledged step."""


def keys_of(size: int) -> list[str]:
    """Return the keys of a store, which are its orders too."""
    return [f"{kind}-{number}" for number in range(2 * size) for kind in KINDS if kind != "large" or number == size]


def truth(key: str) -> Any:
    """Return what the run of a key answers; nothing else is true."""
    parts = [f"{key}, part {part}; " * 20 for part in range(2)]
    answers: dict[str, Any] = {
        "ended": {"parts": parts, "paid": f"paid {key}"},
        "failed": f"failed: ValueError: {key} is no good",
        "large": key * (70_000 // len(key)) + f"paid {key}",
        "tomorrow": "waiting",
        "doubted": "signed by hand",
        "unfinished": {"part": parts[0], "paid": f"paid {key}", "shipped": f"shipped {key}"},
    }
    return answers[_kind(key)]


def _kind(key: str) -> str:
    return key.partition("-")[0]


# Making it


async def make(path: str, ledger: str, keys: list[str], dies: bool) -> None:
    """Start these runs, and see each as far as it gets; then end, or die with the work still in the log."""
    global _building, _ledger
    _building, _ledger = True, Path(ledger)
    async with hf.open(await SqliteStore.open(path), APP) as runtime, asyncio.timeout(WAIT_SECONDS):
        runs: dict[str, hf.Run[Any]] = {}
        for key in keys:
            runs[key] = await runtime.start(KINDS[_kind(key)], key, key=key)
            _note("started", key=key, run=runs[key].id)
        await asyncio.gather(*(_seen_off(run, _kind(key)) for key, run in runs.items()))
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


async def _seen_off(run: hf.Run[Any], kind: str) -> None:
    async for event in run.events():
        rests = isinstance(event, hf.events.RunParked | hf.events.RunFinished)
        at_gate = kind == "unfinished" and isinstance(event, hf.events.StepStarted) and "gate" in event.step
        if rests or at_gate:
            return


# Asking it


@dataclass(slots=True)
class Said:
    """What a damaged store said of its runs and of itself."""

    refused: str = ""
    """Why the store, or a question to it, was refused."""
    same: int = 0
    """How many runs gave the true answer."""
    named: dict[str, str] = field(default_factory=dict)
    """Runs that were set aside, with the words for it."""
    findings: int = 0
    wrong: list[str] = field(default_factory=list)
    """Every answer that is neither the truth nor a named refusal; nothing may stand here."""


async def ask(path: str, ledger: str, size: int, twin: str = "") -> Said:
    """Open the store, ask for every key again, list, verify, and compare with the ledger."""
    global _ledger
    _ledger = Path(ledger)
    if twin:
        TWINS[twin]()
    notes = [json.loads(line) for line in _ledger.read_text("utf-8").splitlines()]
    ids = {note["key"]: note["run"] for note in notes if note["what"] == "started"}
    said = Said()
    try:
        async with hf.open(await SqliteStore.open(path), APP) as runtime:
            await asyncio.gather(*(_ask(runtime, key, ids[key], said) for key in keys_of(size)))
            await _survey(runtime, len(ids), said)
    except StoreError as error:
        said.refused = said.refused or f"{error.code}: {error}"
    except Exception as error:
        said.wrong.append(f"opening or closing it raised {error!r}")
    said.wrong += _misdeeds(len(notes))
    if said.named and not said.findings and not said.refused:
        said.wrong.append(f"verify found nothing wrong, but {said.named} were set aside")
    return said


async def _ask(runtime: hf.Runtime, key: str, known: str, said: Said) -> None:
    kind = _kind(key)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            run = await runtime.start(KINDS[kind], key, key=key)
            if run.id != known:
                said.wrong.append(f"{key} has another run now: {run.id}, not {known}")
                return
            answer = await _ANSWERING.get(kind, _result)(run)
    except hf.RunError as error:
        if error.status == hf.Status.QUARANTINED and error.run == known:
            said.named[key] = error.reason
        else:
            said.wrong.append(f"{key} ended otherwise: {error}")
    except Damaged as error:
        if error.run == known or repr(key) in str(error):
            said.named[key] = str(error)
        else:
            said.wrong.append(f"{key} is refused under another name: {error}")
    except StoreError as error:
        said.refused = said.refused or f"{error.code}: {error}"
    except TimeoutError:
        said.wrong.append(f"{key} waits without end: {await _standing(runtime, known)}")
    except Exception as error:
        said.wrong.append(f"{key} raised {error!r}")
    else:
        if answer == truth(key):
            said.same += 1
        else:
            said.wrong.append(f"{key} answered {str(answer)[:200]}")


async def _result(run: hf.Run[Any]) -> Any:
    return await run.result()


async def _failure(run: hf.Run[Any]) -> str:
    try:
        await run.result()
    except hf.RunError as error:
        if error.status != hf.Status.FAILED:
            raise
        return f"{error.status}: {error.reason}"
    return "no failure"


async def _resting(run: hf.Run[Any]) -> str:
    info = await run.info()
    if info.status is hf.Status.QUARANTINED:
        raise hf.RunError(run=info.id, status=info.status, reason=info.reason)
    # `running` for a moment, where a run is claimed to be looked at and set aside.
    return str(info.status)


async def _resolved(run: hf.Run[Any]) -> Any:
    info = await run.info()
    if info.status is hf.Status.WAITING:
        await run.resolve("0/sign#1", "signed by hand", by="somebody")
    return await run.result()


_ANSWERING: Final[dict[str, Callable[[hf.Run[Any]], Awaitable[Any]]]] = {
    "failed": _failure,
    "tomorrow": _resting,
    "doubted": _resolved,
}


async def _standing(runtime: hf.Runtime, run: str) -> str:
    try:
        info = await (await runtime.get(run)).info()
    except Exception as error:
        return repr(error)
    return f"{info.status} {info.reason}"


async def _survey(runtime: hf.Runtime, runs: int, said: Said) -> None:
    """List and verify: more runs than there were is wrong, and so is an error that has no name."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            listed = await runtime.runs(limit=1000)
            if len(listed) > runs:
                said.wrong.append(f"there are {len(listed)} runs now")
            said.findings = len([finding async for finding in runtime.client.verify()])
    except StoreError as error:
        said.refused = said.refused or f"{error.code}: {error}"
    except HoldfastError as error:
        said.wrong.append(f"listing or verifying raised {error!r}")


def _misdeeds(before: int) -> list[str]:
    """Return what was done to the world since line `before` of the ledger and should not have been."""
    notes = [json.loads(line) for line in _ledger.read_text("utf-8").splitlines()]
    done = [(note["step"], note["order"]) for note in notes if note["what"] == "did"]
    new = [(note["step"], note["order"]) for note in notes[before:] if note["what"] == "did"]
    again = [f"{step} of {order} was done again" for step, order in new if (_kind(order), step) not in _TO_DO]
    return again + [f"{step} of {order} was done {n} times" for (step, order), n in Counter(done).items() if n > 1]


# A deliberately broken twin


def _blind() -> None:
    """Believe rows and entries without looking at their checksums."""

    def believed(values: tuple[Any, ...]) -> RunRow:
        return replace(rows.read_row(values), damage="")

    def unchecked(run: str, previous: bytes, entries: Any, after: int, shares: Any = ()) -> bytes:
        head: bytes = entries[-1].checksum if entries else previous
        return head

    for module in (leasing, lookup, reading):
        module.read_row = believed  # type: ignore[attr-defined]
    for other in (client_reading, journal, feed):
        other.check_chain = unchecked  # type: ignore[attr-defined]


TWINS: Final = {"blind": _blind}
"""What is broken on purpose, by name; each is applied in a process of its own."""
