"""A run's inbox is read once, however many posts have come and however often it is looked for more."""

from collections.abc import Sequence
from typing import Any

import holdfast as hf
from holdfast.store.value import Post
from tests.engine.stage import Stage

_POSTS = 40
_word = hf.Signal("word", int)


@hf.durable
async def listen(ctx: hf.Context, count: int) -> list[int]:
    """Return what was sent, in order."""
    return [await ctx.receive(_word) for _ in range(count)]


async def test_every_post_is_read_once_however_many_waits_there_are(every: Stage) -> None:
    """Linear (P8): the wait for the fortieth signal does not read the thirty-nine before it again."""
    read: list[int] = []
    async with every.open(listen, work=False) as runtime:
        run = await runtime.start(listen, _POSTS)
        for number in range(_POSTS):
            await run.signal(_word, number)
    store: Any = await every.store()
    inbox = store.inbox

    async def counted(run: str, *, after: int = 0) -> Sequence[Post]:
        posts: Sequence[Post] = await inbox(run, after=after)
        read.extend(post.seq for post in posts)
        return posts

    store.inbox = counted
    try:
        async with hf.open(store, hf.App(listen)) as runtime:
            handle = await runtime.get(run.id, of=listen)
            assert await handle.result(timeout=20) == list(range(_POSTS))
    finally:
        store.inbox = inbox
    assert sorted(read) == list(range(1, _POSTS + 1))
