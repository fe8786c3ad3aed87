"""A worker whose runs rest, end, ask and pause while another process posts to them; run it as a program."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock
from uuid import uuid4

from msgspec.structs import replace

import holdfast as hf
from holdfast.client import question
from holdfast.client.local import LocalClient
from holdfast.core.post import CANCEL
from holdfast.engine.drive import Drive
from holdfast.engine.waits import Waits
from holdfast.journal.journal import Journal
from holdfast.store.value import Commit, Post

MAIL: Final = hf.Signal("mail", int)
_AT_ONCE: Final = 64


async def look() -> str:
    """Do something."""
    return "looked"


@hf.durable
async def rests(ctx: hf.Context) -> int:
    """Wait for mail, however long it takes."""
    return await ctx.receive(MAIL)


@hf.durable
async def hurries(ctx: hf.Context, seconds: float) -> int | None:
    """Wait for mail a moment, and end."""
    return await ctx.receive(MAIL, timeout=seconds)


@hf.durable
async def works(ctx: hf.Context) -> str:
    """Do something, and end."""
    return await ctx.step(look)


@hf.durable
async def asks(ctx: hf.Context, seconds: float) -> list[bool]:
    """Ask, and say what was decided and whether anybody did."""
    decision = await ctx.ask("Now?", expires=seconds)
    return [decision.yes, decision.expired]


@hf.durable
async def strolls(ctx: hf.Context) -> int:
    """Do something, wait for mail, and do something more."""
    await ctx.step(look)
    got = await ctx.receive(MAIL)
    await ctx.step(look)
    return got


CODES: Final = (rests, hurries, works, asks, strolls)

# What is broken in a twin, each in the process that would break it.


def _blind() -> None:
    """A park takes as seen what came since its run looked."""
    make = Journal._commit_of

    def blind(self: Journal, *args: Any) -> Commit:
        made = make(self, *args)
        if made.change is None or made.change.status.terminal:
            return made
        return replace(made, inbox=None, change=replace(made.change, seen_seq=None))

    mock.patch.object(Journal, "_commit_of", blind).start()


def _deaf() -> None:
    """An ending does not ask whether the run was cancelled meanwhile."""
    append = Journal.append

    def unguarded(self: Journal, *entries: Any, **rest: Any) -> Any:
        return append(self, *entries, **{**rest, "guarded": False})

    mock.patch.object(Journal, "append", unguarded).start()


def _forgetful() -> None:
    """Who asks for an end twice has asked for two."""
    heed = Waits._heed

    async def again(self: Waits, posts: Sequence[Post]) -> None:
        await heed(self, posts)
        for post in posts:
            if post.kind == CANCEL and post.seq in self.inbox._waiting:
                await self._cancel(post)

    mock.patch.object(Waits, "_heed", again).start()


def _two_keys() -> None:
    """Each asks under a key of its own."""
    post = LocalClient._post

    async def keyed(self: LocalClient, run: Any, kind: str, key: str, body: Any) -> str:
        return await post(self, run, kind, f"{key}/{uuid4()}" if kind == CANCEL else key, body)

    mock.patch.object(LocalClient, "_post", keyed).start()


def _hasty() -> None:
    """An expiry is written whatever came meanwhile."""

    async def write(self: Drive, entry: Any) -> bool:
        await self.write(entry)
        return True

    mock.patch.object(Drive, "write_if_heard", write).start()


def _trusting() -> None:
    """Whoever answers is told that it counts, without another look."""

    async def never(store: Any, asked: Any) -> bool:
        return False

    mock.patch.object(question, "has_expired", never).start()


def _boastful() -> None:
    """Every post is said to have been accepted."""
    post = LocalClient._post

    async def accepted(self: LocalClient, *args: Any) -> str:
        await post(self, *args)
        return "accepted"

    mock.patch.object(LocalClient, "_post", accepted).start()


TWINS: Final[dict[str, Sequence[Callable[[], None]]]] = {
    "": (),
    "blind": (_blind,),
    "deaf": (_deaf,),
    "forgetful": (_forgetful, _two_keys),
    "hasty": (_hasty, _trusting),
    "boastful": (_boastful,),
}


@contextmanager
def broken_as(twin: str) -> Iterator[None]:
    """Break this process in the way that `twin` names; an empty name breaks nothing."""
    for break_it in TWINS[twin]:
        break_it()
    try:
        yield
    finally:
        mock.patch.stopall()


async def serve(store: str) -> None:
    """Work on a store until killed."""
    async with hf.open(store, hf.App(*CODES, version="1"), concurrency=_AT_ONCE):
        print("serving", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Begin as one JSON argument says."""
    given = json.loads(sys.argv[1])
    with broken_as(given["twin"]):
        asyncio.run(serve(given["store"]))


if __name__ == "__main__":
    # As a module of its own name, so that its functions are those that the other process knows.
    from tests.chaos import racer

    racer.main()
