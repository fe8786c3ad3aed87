"""A closed store with a run in every state, and the question whether a damaged copy of it still tells the truth."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import holdfast as hf
from holdfast.core.errors import Damaged, StoreError
from holdfast.store.sqlite import SqliteStore

LARGE: Final = "large " * 12_000
"""Does not fit into an entry, so it stands in a blob."""
BOUND_SECONDS: Final = 10.0
_performed: list[str] = []
"""What the steps of this process did to the world."""
_building = False


def act(what: str) -> str:
    """Do something that must not be done twice."""
    _performed.append(what)
    return f"did {what}"


def enlarge(what: str) -> str:
    """Return something that needs a blob."""
    _performed.append(what)
    return what + LARGE


async def gate() -> str:
    """Stop the run here while the specimen is made."""
    if _building:
        await asyncio.get_running_loop().create_future()
    return "passed"


def pay(order: str) -> str:
    """Leave it unknown whether the money moved."""
    _performed.append(f"pay {order}")
    raise ConnectionError("cut off")


@hf.durable
async def done(ctx: hf.Context, order: str) -> dict[str, str]:
    """Complete, with a result in a blob."""
    await ctx.emit({"order": order})
    return {"act": await ctx.step(act, f"{order} done"), "large": LARGE}


@hf.durable
async def failed(ctx: hf.Context, order: str) -> None:
    """Fail."""
    await ctx.step(act, f"{order} failed")
    raise ValueError(f"order {order} is no good")


@hf.durable
async def half(ctx: hf.Context, order: str, text: str) -> dict[str, str]:
    """Be interrupted after some steps, with input and a result in blobs."""
    at = ctx.now()
    first = await ctx.step(act, f"{order} first")
    large = await ctx.step(enlarge, f"{order} large")
    await ctx.emit(str(at))
    passed = await ctx.step(gate, effect="keyed")
    last = await ctx.step(act, f"{order} last")
    return {"first": first, "large": large, "passed": passed, "last": last, "text": text}


@hf.durable
async def answered(ctx: hf.Context, order: str) -> str:
    """Wait in doubt, with a person's word in the inbox."""
    return await ctx.step(pay, order, effect="once", in_doubt="wait")


@hf.durable
async def doubtful(ctx: hf.Context, order: str) -> str:
    """Wait in doubt for a person."""
    return await ctx.step(pay, order, effect="once", in_doubt="wait")


@hf.durable
async def queued(ctx: hf.Context, order: str) -> str:
    """Be created, and driven by nobody yet."""
    return await ctx.step(act, f"{order} queued")


@hf.durable
async def later(ctx: hf.Context, order: str) -> str:
    """Be due in an hour."""
    return await ctx.step(act, f"{order} later")


APP: Final = hf.App(done, failed, half, answered, doubtful, queued, later, version="1")
INPUTS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "done": (done, ("o1",)),
    "failed": (failed, ("o2",)),
    "half": (half, ("o3", LARGE)),
    "answered": (answered, ("o4",)),
    "doubtful": (doubtful, ("o5",)),
    "queued": (queued, ("o6",)),
    "later": (later, ("o7",)),
    "half again": (half, ("o8", "short")),
}
"""Every run of the specimen: its key, its function and its arguments."""
LABELS: Final = {"shop": "caf\u00e9"}
ANSWERS: Final[Mapping[str, Any]] = {
    "done": {"act": "did o1 done", "large": LARGE},
    "failed": "failed: ValueError: order o2 is no good",
    "half": {
        "first": "did o3 first", "large": f"o3 large{LARGE}", "passed": "passed", "last": "did o3 last", "text": LARGE,
    },
    "answered": "paid by hand",
    "doubtful": "paid after all",
    "queued": "did o6 queued",
    "later": "queued",
    "half again": {
        "first": "did o8 first", "large": f"o8 large{LARGE}", "passed": "passed", "last": "did o8 last",
        "text": "short",
    },
}  # fmt: skip
"""What each run answers when it is asked; nothing else is the truth."""
STILL_TO_DO: Final[Mapping[str, str]] = {"half": "o3 last", "queued": "o6 queued", "half again": "o8 last"}
"""The steps that are not recorded yet; any other that is performed again is an acknowledged step repeated."""


async def make(path: Path) -> dict[str, str]:
    """Make the specimen at `path` and return the runs' ids by key."""
    global _building
    _building = True
    try:
        async with asyncio.timeout(6 * BOUND_SECONDS), hf.open(await _open(path), APP) as runtime:
            runs = {}
            for key, (function, args) in INPUTS.items():
                if key not in ("queued", "later"):
                    runs[key] = await runtime.start(function, *args, key=key, labels=LABELS)
            for key, count in (("half", 6), ("half again", 6), ("answered", 4), ("doubtful", 4)):
                await _reached(runs[key], count)
            for key in ("done", "failed"):
                await runtime.client.wait(runs[key].id)
        async with asyncio.timeout(6 * BOUND_SECONDS), hf.open(await _open(path), APP, work=False) as runtime:
            runs["queued"] = await runtime.start(queued, *INPUTS["queued"][1], key="queued", labels=LABELS)
            runs["later"] = await runtime.start(later, *INPUTS["later"][1], key="later", labels=LABELS, delay=3600)
            word: hf.Run[Any] = await runtime.get(key="answered")
            await word.resolve("0/pay#1", "paid by hand", by="somebody")
    finally:
        _building = False
    return {key: run.id for key, run in runs.items()}


async def _open(path: Path) -> SqliteStore:
    # Not synced: these tests damage the file by other means than losing its last writes.
    return await SqliteStore.open(str(path), synchronous="OFF")


async def _reached(run: hf.Run[Any], seq: int) -> None:
    async for event in run.events():
        if not isinstance(event, hf.events.PreviewReset) and event.seq >= seq:
            return


@dataclass
class Judgement:
    """What a damaged store said: per run and for itself."""

    same: list[str] = field(default_factory=list)
    """Runs that gave the true answer."""
    named: dict[str, str] = field(default_factory=dict)
    """Runs that were set aside, with the words for it."""
    refused: str = ""
    """Why the store, or a question to it, was refused."""
    findings: list[tuple[str | None, int | None, str]] = field(default_factory=list)
    """What `verify` found, before anything was driven."""
    wrong: list[str] = field(default_factory=list)
    """Every answer that is neither the truth nor a typed refusal; nothing may stand here."""


async def judge(path: Path, ids: Mapping[str, str]) -> Judgement:
    """Open a damaged copy of the specimen, verify it, let it resume, and ask for every run by its key."""
    _performed.clear()
    said = Judgement()
    try:
        async with asyncio.timeout(4 * BOUND_SECONDS):
            await _verify(path, said)
            async with hf.open(await _open(path), APP) as runtime:
                await asyncio.gather(*(_ask(runtime, key, ids[key], said) for key in INPUTS))
                await _count(runtime, said)
    except StoreError as error:
        said.refused = said.refused or f"{error.code}: {error}"
    except TimeoutError:
        said.wrong.append("it hung")
    except Exception as error:
        said.wrong.append(f"opening it raised {error!r}")
    said.wrong += _misdeeds(said)
    if said.named and not said.findings and not said.refused:
        said.wrong.append(f"verify found nothing wrong, but {', '.join(said.named)} was set aside")
    return said


def _misdeeds(said: Judgement) -> Iterator[str]:
    """Yield what was done to the world and should not have been."""
    for what in sorted(set(_performed)):
        if what not in STILL_TO_DO.values():
            yield f"{what} was performed again"
        if _performed.count(what) > 1:
            yield f"{what} was performed twice"
    for key in said.named:
        if STILL_TO_DO.get(key) in _performed:
            yield f"{key} acted although it was set aside"


async def _verify(path: Path, said: Judgement) -> None:
    async with hf.open(await _open(path), APP, work=False) as runtime:
        said.findings = [(finding.run, finding.seq, finding.what) async for finding in runtime.client.verify()]


async def _ask(runtime: hf.Runtime, key: str, known: str, said: Judgement) -> None:
    function, args = INPUTS[key]
    try:
        run = await runtime.start(function, *args, key=key)
        if run.id != known:
            said.wrong.append(f"{key} is another run now: {run.id}")
            return
        answer = await _ANSWERING.get(key, _result)(run)
    except hf.RunError as error:
        _named(said, key, known, error.run, error.reason, is_named="damaged" in error.reason)
    except Damaged as error:
        _named(said, key, known, error.run, str(error), is_named=error.run == known)
    except StoreError as error:
        said.refused = said.refused or f"{error.code}: {error}"
    except TimeoutError:
        said.wrong.append(f"{key} hung: {await _standing(runtime, known)}")
    except Exception as error:
        said.wrong.append(f"{key} raised {error!r}")
    else:
        if answer == ANSWERS[key]:
            said.same.append(key)
        else:
            said.wrong.append(f"{key} answered {str(answer)[:200]}")


def _named(said: Judgement, key: str, known: str, run: str, why: str, *, is_named: bool) -> None:
    if is_named and run == known:
        said.named[key] = why
    else:
        said.wrong.append(f"{key} was refused without its name or for another reason: {why}")


async def _standing(runtime: hf.Runtime, run: str) -> str:
    try:
        info = await (await runtime.get(run)).info()
    except Exception as error:
        return repr(error)
    return f"{info.status} {info.reason}"


async def _result(run: hf.Run[Any]) -> Any:
    return await run.result(timeout=BOUND_SECONDS)


async def _failure(run: hf.Run[Any]) -> str:
    try:
        await run.result(timeout=BOUND_SECONDS)
    except hf.RunError as error:
        if error.status == hf.Status.FAILED:
            return f"{error.status}: {error.reason}"
        raise
    return "no failure"


async def _resolved(run: hf.Run[Any]) -> Any:
    info = await run.info()
    if info.status is hf.Status.WAITING and info.reason.startswith("doubt"):
        await run.resolve("0/pay#1", "paid after all", by="somebody")
    return await _result(run)


async def _status(run: hf.Run[Any]) -> str:
    info = await run.info()
    if info.status is hf.Status.QUARANTINED:
        raise hf.RunError(run=info.id, status=info.status, reason=info.reason)
    return str(info.status)


_ANSWERING: Final[dict[str, Callable[[hf.Run[Any]], Awaitable[Any]]]] = {
    "failed": _failure,
    "doubtful": _resolved,
    "later": _status,
}


async def _count(runtime: hf.Runtime, said: Judgement) -> None:
    try:
        listed = await runtime.runs(limit=1000)
    except StoreError as error:
        said.refused = said.refused or f"{error.code}: {error}"
        return
    if len(listed) > len(INPUTS):
        said.wrong.append(f"there are {len(listed)} runs now")


def copy(specimen: Path, to: Path) -> None:
    """Copy the specimen's file, and its log if it has one."""
    for suffix in ("", "-wal"):
        source = specimen.with_name(specimen.name + suffix)
        if source.exists():
            shutil.copyfile(source, to.with_name(to.name + suffix))
