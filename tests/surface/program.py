"""The program that these tests run: it notes in a ledger what it really does, and waits at a gate where one is shut."""

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf

HERE = Path(__file__).parent


@dataclass
class Point:
    """A value with a type of its own."""

    x: int
    y: int = 0


def note(what: str) -> None:
    """Write down what was done, where no journal can take it back."""
    with (HERE / "ledger.txt").open("a", encoding="utf-8") as ledger:
        ledger.write(f"{os.getpid()} {what}\n")


def add(number: int) -> int:
    """Add one."""
    note(f"add {number}")
    return number + 1


def pass_gate(number: int) -> int:
    """Go on, or wait for ever where the gate is shut."""
    note("at the gate")
    if (HERE / "gate").exists():
        print("at the gate", file=sys.stderr, flush=True)
        threading.Event().wait()
    return number


def speak(step: hf.Step[None], words: int) -> str:
    """Say word by word what will be said, and stop at the gate."""
    for word in range(words):
        step.emit(f"word {word}")
    pass_gate(words)
    return "said"


@hf.step(effect="once", in_doubt="wait")
def take(cents: int) -> str:
    """Take money, and never hear what became of it."""
    note(f"take {cents}")
    raise OSError("the line went dead")


@hf.durable
async def count(ctx: hf.Context, number: int, times: int = 2) -> int:
    """Count up."""
    for _ in range(times):
        number = await ctx.step(add, number)
    return number


@hf.durable
async def hold(ctx: hf.Context, number: int) -> int:
    """Do a step, pass the gate, do another."""
    number = await ctx.step(add, number)
    number = await ctx.step(pass_gate, number)
    return await ctx.step(add, number)


@hf.durable
async def talk(ctx: hf.Context, words: int) -> str:
    """Send previews."""
    return await ctx.step(speak, words)


@hf.durable
async def pay(ctx: hf.Context, cents: int) -> str:
    """End in doubt."""
    await ctx.step(add, cents)
    receipt = await ctx.step(take, cents)
    await ctx.step(add, cents + 1)
    return receipt


@hf.durable
async def fail(ctx: hf.Context, why: str = "out of luck") -> None:
    """End badly."""
    raise ValueError(why)


@hf.durable
async def greet(ctx: hf.Context, name: str, at: Point | None = None, loud: bool = False) -> str:
    """Take arguments of several types."""
    print("the program prints")
    await ctx.emit({"seen": name})
    place = f" at {at.x},{at.y}" if at is not None else ""
    return f"{name}{place}{'!' if loud else ''}"
