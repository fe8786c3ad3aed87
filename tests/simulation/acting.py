"""A durable function that does what a plan says, noting each effect outside of its store."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import holdfast as hf
from holdfast.engine.function import Durable
from tests.simulation.plan import (
    Ask,
    Child,
    Continue,
    Emit,
    Fail,
    Gather,
    Map,
    Op,
    Plan,
    Receive,
    Sleep,
    Step,
    Take,
)

Note = Callable[..., None]
LIMIT: Final = hf.Limit("crowd", at_once=2)
DONE: Final = "!"
"""What a step returns is its place with this behind it."""


class Refused(Exception):
    """The world says no, and has done nothing."""


class World:
    """What the code of this process meets: where it notes what happened, and how it looks that up again."""

    def __init__(self, note: Note, happened: Callable[[str], bool], verify_seconds: float) -> None:
        self.note, self.happened, self.verify_seconds = note, happened, verify_seconds


world: World


def enter(entered: World) -> None:
    """Let this process's steps meet a world."""
    global world
    world = entered


async def perform(step: hf.Step[None], place: str, fails: int, never: bool, saw: str) -> str:
    """Have an effect, or fail before having one."""
    if never or step.attempt <= fails:
        world.note("tried", place=place, key=step.idempotency_key, saw=saw, run=step.run_id)
        raise Refused(place)
    world.note("did", place=place, key=step.idempotency_key, saw=saw, run=step.run_id)
    await asyncio.sleep(0)
    return place + DONE


def was_performed(place: str, fails: int, never: bool, saw: str) -> Any:
    """Look an effect up."""
    return place + DONE if world.happened(place) else hf.NOT_DONE


@hf.durable
async def item(ctx: hf.Context, place: str) -> str:
    """Take one step as a run of its own."""
    world.note("began", plan=place, run=ctx.run_id)
    done = await ctx.step(perform, place, 0, False, "")
    world.note("ack", place=place, run=ctx.run_id)
    return done


@hf.durable
async def act(ctx: hf.Context, plan: Plan, at: int, done: dict[str, Any]) -> dict[str, Any]:
    """Do what a plan says from a place on, and return what came of each operation."""
    world.note("began", plan=plan.name, run=ctx.run_id)
    try:
        return await _Actor(ctx, plan).go(at, done)
    except asyncio.CancelledError:
        if plan.cleans:
            await ctx.step(perform, f"{plan.name}.tidy", 0, False, "")
        raise


CODES: Final[Sequence[Durable[Any, ...]]] = (act, item)


class _Actor:
    """One generation of a run."""

    def __init__(self, ctx: hf.Context, plan: Plan) -> None:
        self._ctx, self._plan = ctx, plan

    async def go(self, at: int, done: dict[str, Any]) -> dict[str, Any]:
        for number in range(at, len(self._plan.ops)):
            op = self._plan.ops[number]
            if isinstance(op, Continue):
                await self._ctx.continue_as(self._plan, number + 1, {**done, op.place: "went on"})
            if isinstance(op, Fail):
                raise ValueError(op.place)
            done |= await self._branch([op])
        return done

    async def _branch(self, ops: Sequence[Op]) -> dict[str, Any]:
        done: dict[str, Any] = {}
        saw = ""
        for op in ops:
            if isinstance(op, Gather):
                parts = await self._ctx.gather(*(self._branch(branch) for branch in op.branches))
                done[op.place] = len(parts)
                for part in parts:
                    done |= part
                continue
            done[op.place] = await self._one(op, saw)
            # A time is recorded with the next entry only, so that a step which writes no intent may see another.
            saw = done[op.place] if isinstance(op, Take) and op.what != "now" else ""
            world.note("ack", place=op.place, run=self._ctx.run_id)
        return done

    async def _one(self, op: Op, saw: str) -> Any:
        ctx = self._ctx
        match op:
            case Step():
                return await self._step(op, saw)
            case Sleep():
                before = ctx.now()
                await ctx.sleep(op.seconds)
                return (ctx.now() - before).total_seconds() >= op.seconds
            case Receive():
                return await self._receive(op)
            case Ask():
                return await self._ask(op)
            case Child():
                return await self._child(op)
            case Map():
                places = [f"{op.place}.{number}" for number in range(op.items)]
                if op.runs:
                    return await ctx.map(item, places, at_once=op.at_once)
                limit: Any = {"limit": LIMIT} if op.limited else {}
                return await ctx.map(mapped, places, at_once=op.at_once, **limit)
            case Take():
                return self._take(op)
            case Emit():
                await ctx.emit({"place": op.place})
                return None
            case _:
                raise AssertionError(op)

    async def _step(self, op: Step, saw: str) -> Any:
        options: dict[str, Any] = {"effect": "once" if op.effect in ("once", "verified", "asked") else op.effect}
        if op.fails:
            attempts = 2 if op.never else op.fails + 1
            options["retry"] = hf.Retry(attempts=attempts, first=op.pause, on=(Refused,))
        if options["effect"] == "once":
            options |= {"not_performed": (Refused,), "timeout": world.verify_seconds}
        if op.effect == "verified":
            options["verify"] = was_performed
        if op.effect == "asked":
            # Whoever is asked about a doubt reads its place in the step's key.
            options |= {"in_doubt": "wait", "key": op.place}
        if op.limited:
            options["limit"] = LIMIT
        try:
            return await self._ctx.step(perform, op.place, op.fails, op.never, saw, **options)
        except hf.InDoubt:
            return "in doubt"
        except hf.StepError as error:
            return f"failed {error.message}"

    async def _receive(self, op: Receive) -> Any:
        signal = hf.Signal(op.place, str)
        if op.timeout is None:
            # In whichever order they were sent.
            return sorted([await self._ctx.receive(signal) for _ in range(op.times)])
        got = await self._ctx.receive(signal, timeout=op.timeout)
        if got is None and op.again:
            got = await self._ctx.receive(signal)
        return got if got is None else [got]

    async def _ask(self, op: Ask) -> Any:
        world.note("asks", place=op.place, plan=self._plan.name, run=self._ctx.run_id)
        decision = await self._ctx.ask(
            f"Is it {op.place}?", show={"place": op.place}, args={"n": 1}, expires=op.expires
        )
        return "expired" if decision.expired else [decision.yes, decision.by, decision.args]

    async def _child(self, op: Child) -> Any:
        ctx = self._ctx
        try:
            if op.how == "run":
                return await ctx.run(act, op.plan, 0, {})
            child = await ctx.spawn(act, op.plan, 0, {})
            if op.how == "leave":
                return "left"
            if op.how == "signal":
                await child.signal(hf.Signal(f"{op.plan.name}.told", str), "1")
            if op.how == "cancel":
                await child.cancel("not needed")
            return await child.result()
        except hf.RunError as error:
            return str(error.status)

    def _take(self, op: Take) -> str:
        ctx = self._ctx
        match op.what:
            case "now":
                now: datetime = ctx.now()
                return now.isoformat()
            case "random":
                return repr(ctx.random.random())
            case "uuid":
                return str(ctx.uuid())
            case "patched":
                return str(ctx.patched(op.place))


async def mapped(step: hf.Step[None], place: str) -> str:
    """Have an effect as one of many."""
    return await perform(step, place, 0, False, "")
