"""Where the writers of one run meet: nobody waits for what nobody will write."""

import asyncio
from typing import Any

import pytest

from holdfast.core.entry import CancelReceived
from holdfast.engine.outbox import Outbox


class Silent:
    """A journal whose commits are never answered."""

    def append(self, *entries: Any, **rest: Any) -> "asyncio.Future[Any]":
        """Return an outcome that does not come."""
        return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_writers_are_told_when_whoever_writes_for_them_is_stopped(turns: int) -> None:
    """As when a loop ends: what waits for a commit cannot be cancelled, so its end has to come from here."""
    outbox = Outbox(Silent())  # type: ignore[arg-type]
    outbox.merge(True)
    pending = [asyncio.ensure_future(_outcome(outbox, guarded)) for guarded in (False, True, False)]
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert outbox._task is not None
    outbox._task.cancel()
    done, waiting = await asyncio.wait(pending, timeout=5)
    for each in waiting:
        each.cancel()
    assert not waiting
    assert all(each.cancelled() for each in done)


async def _outcome(outbox: Outbox, guarded: bool) -> Any:
    return await outbox.append(CancelReceived(post=1), guarded=guarded)
