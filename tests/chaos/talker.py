"""A process of a chat: one that sends what it is told to, or one that answers; run it as a program."""

import asyncio
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

import holdfast as hf
from holdfast.core.errors import ConversationBusy
from holdfast.store.sqlite import commit, conversing, creating

_THINK_SECONDS: Final = 0.004
_AT_ONCE: Final = 64
_folder = Path()


def write(**line: Any) -> None:
    """Add a line to the ledger, whole or not at all."""
    ledger = os.open(_folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(ledger, json.dumps(line).encode() + b"\n")
    os.close(ledger)


async def act(conversation: str, text: str) -> str:
    """Do what a turn does, alone in its conversation: a lock that goes with its process says whether it is."""
    place = os.open(_folder / f"{conversation}.turn", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            write(what="overlap", conversation=conversation, text=text)
        write(what="did", conversation=conversation, text=text)
        await asyncio.sleep(_THINK_SECONDS)
    finally:
        os.close(place)
    return text.upper()


@hf.durable
async def reply(ctx: hf.Context, message: str) -> str:
    """Answer a message that names its conversation."""
    conversation, _, text = message.partition("/")
    try:
        return await ctx.step(act, conversation, text, effect="once", in_doubt="raise")
    except hf.InDoubt:
        return "in doubt"


# What is broken in a twin, in every process.


def _hasty() -> None:
    """Every turn is active as soon as it is created, and commits whosever turn it is."""
    take = conversing.take_turn

    def at_once(db: Any, row: Any) -> Any:
        return replace(take(db, row), behind=False)

    mock.patch.object(creating, "take_turn", at_once).start()
    mock.patch.object(commit, "_OF_TURN", commit._PLAIN).start()


TWINS: Final[dict[str, Sequence[Callable[[], None]]]] = {"": (), "hasty": (_hasty,)}


@contextlib.contextmanager
def broken_as(twin: str) -> Iterator[None]:
    """Break this process in the way that `twin` names; an empty name breaks nothing."""
    for break_it in TWINS[twin]:
        break_it()
    try:
        yield
    finally:
        mock.patch.stopall()


async def serve(store: str) -> None:
    """Answer until killed."""
    async with hf.open(store, hf.App(reply, version="1"), concurrency=_AT_ONCE):
        print("serving", flush=True)
        await asyncio.Event().wait()


async def send(store: str) -> None:
    """Send every message that stands on the input, all at once, and say of each what became of it."""
    async with hf.open(store, hf.App(reply, version="1"), work=False) as runtime, asyncio.TaskGroup() as sending:
        print("serving", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            sending.create_task(_send_one(runtime, **json.loads(line)))


async def _send_one(runtime: hf.Runtime, *, conversation: str, text: str, if_busy: Any) -> None:
    chat = runtime.conversation(conversation, reply)
    try:
        run = await chat.send(f"{conversation}/{text}", key=f"{conversation}/{text}", if_busy=if_busy)
    except ConversationBusy:
        print(json.dumps({"conversation": conversation, "text": text, "run": None}), flush=True)
    else:
        print(json.dumps({"conversation": conversation, "text": text, "run": run.id}), flush=True)


def main() -> None:
    """Begin as one JSON argument says."""
    global _folder
    given = json.loads(sys.argv[1])
    _folder = Path(given["folder"])
    with broken_as(given["twin"]):
        asyncio.run((serve if given["role"] == "worker" else send)(given["store"]))


if __name__ == "__main__":
    # As a module of its own name, so that its functions are those that the other process knows.
    from tests.chaos import talker

    talker.main()
