"""A worker under trial, run as a program: its acts stand in a ledger outside, and it halts where it is told to."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import holdfast as hf
from holdfast.core import limits
from holdfast.engine.function import Durable
from holdfast.runtime import Opening
from holdfast.store import point
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.heart import PostgresHeart
from holdfast.store.sqlite import SqliteStore
from tests.chaos import twins


class Halts:
    """Places at which this process waits until it is told to go on; each is set for one arrival."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._speaking = line, threading.Lock()
        self._set: dict[str, int] = {}
        self._setting = threading.Lock()
        self._go = threading.Event()

    def tell(self, words: str) -> None:
        """Say something to whoever plays the trial."""
        with self._speaking:
            self._line.sendall(f"{words}\n".encode())

    def reached(self, place: str) -> None:
        """Pass, or wait here if this arrival was chosen."""
        with self._setting:
            left = self._set.get(place)
            if left is None:
                return
            self._set[place] = left - 1
            if left > 1:
                return
            del self._set[place]
            go = self._go
        self.tell(f"at {place}")
        go.wait()

    def obey(self) -> None:
        """Do as told until the line ends, and end with it."""
        for words in self._line.makefile():
            order, *rest = words.split()
            with self._setting:
                if order == "halt":
                    self._set[rest[0]] = int(rest[1])
                else:
                    self._set.clear()
                    self._go.set()
                    self._go = threading.Event()
            self.tell(f"{order} done")
        os._exit(0)


_halts: Halts
_note: Callable[..., None]
_think_seconds = 0.0


def open_ledger(path: str, who: str) -> Callable[..., None]:
    """Return what appends a line to a ledger: one write, which no death takes back or tears."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(what: str, number: int, **facts: Any) -> None:
        line = {"what": what, "number": number, "who": who, "t": time.monotonic(), **facts}
        os.write(file, json.dumps(line).encode() + b"\n")

    return note


def look(number: int) -> str:
    """Read something: safe to repeat."""
    _note("look", number)
    return f"looked {number}"


@hf.step(effect="once")
def pay(number: int) -> str:
    """Pay: once, and nobody can tell afterwards whether it happened."""
    _halts.reached("effect-begins")
    _note("pay", number)
    _halts.reached("effect-ends")
    return f"pay {number}"


@hf.step(effect="once", in_doubt="wait")
def sign(number: int) -> str:
    """Sign: once, and a person can tell whether it happened."""
    _halts.reached("effect-begins")
    _note("sign", number)
    _halts.reached("effect-ends")
    return f"sign {number}"


@hf.step(effect="once", in_doubt="wait")
def ask(number: int) -> str:
    """Ask a person, who answers by a post."""
    _note("ask", number)
    raise OSError("the line went dead")


def count(number: int) -> str:
    """Compute something: safe to repeat."""
    _note("count", number)
    return f"counted {number}"


EFFECTS: dict[str, Callable[[int], str]] = {"pay": pay, "sign": sign, "ask": ask}


@hf.durable
async def tale(ctx: hf.Context, number: int, effect: str) -> list[str]:
    """Look, have an effect, and count; what each step returned is acknowledged outside."""
    told = [await ctx.step(look, number)]
    _note("ack", number, step="look", value=told[-1])
    if _think_seconds:
        await asyncio.sleep(_think_seconds)
    try:
        told.append(await ctx.step(EFFECTS[effect], number))
    except hf.InDoubt:
        told.append("in doubt")
    _note("ack", number, step=effect, value=told[-1])
    told.append(await ctx.step(count, number))
    _note("ack", number, step="count", value=told[-1])
    return told


@cache
def own(name: str) -> Durable[str, []]:
    """Return a function that only the worker of this name serves."""

    @hf.durable(name=f"own-{name}")
    async def serve(ctx: hf.Context) -> str:
        return name

    return serve


def insist(step: hf.Step[None], number: int) -> int:
    """Fail once, worth another attempt a second later."""
    _note("insist", number)
    if step.attempt < 2:
        raise ConnectionError("come back later")
    return step.attempt


@cache
def later(name: str) -> Durable[int, [int]]:
    """Return a function with a timer that only the worker of this name serves, and so sets."""

    @hf.durable(name=f"later-{name}")
    async def serve(ctx: hf.Context, number: int) -> int:
        return await ctx.step(insist, number, retry=hf.Retry(attempts=2, first=1.0))

    return serve


def _halt_inside() -> None:
    """Put halts before every commit and write, and inside every pulse."""
    for driver in (SqliteStore, PostgresStore):
        _before(driver, "commit", "commit")
    _before(PostgresHeart, "beat", "pulse")
    _before(SqliteStore, "pulse", "pulse")
    point.reached = _halts.reached


def _before(owner: Any, verb: str, place: str) -> None:
    original = getattr(owner, verb)

    def halting(*args: Any, **options: Any) -> Any:
        _halts.reached(place)
        return original(*args, **options)

    setattr(owner, verb, halting)


async def serve(store: str, name: str) -> None:
    """Work on a store until killed, telling what happens."""
    opening = Opening(store, hf.App(tale, own(name), later(name), version="1"), work=True, concurrency=16, told=_tell)
    async with opening as runtime:
        _tell("serving", {"worker": runtime.worker_id})
        await asyncio.Event().wait()


def _tell(event: str, data: dict[str, Any]) -> None:
    _halts.tell(f"{event} {data['worker']}")


def main() -> None:
    """Begin as one JSON argument says."""
    global _halts, _note, _think_seconds
    given = json.loads(sys.argv[1])
    vars(limits)["LEASE_SECONDS"] = given["lease_seconds"]
    _halts = Halts(socket.socket(fileno=given["line"]))
    _note = open_ledger(given["ledger"], given["name"])
    _think_seconds = given["think_seconds"]
    twins.apply(given["twin"], given["store"])
    _halt_inside()
    threading.Thread(target=_halts.obey, name="orders", daemon=True).start()
    # A child, so that there is a tree to stop; it ends when its input does.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL):
        asyncio.run(serve(given["store"], given["name"]))


if __name__ == "__main__":
    # As a module of its own name, so that what its functions know is what was set here.
    from tests.chaos import hand

    hand.main()
