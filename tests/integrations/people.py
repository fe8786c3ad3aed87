"""Somebody who answers what a run asks."""

import asyncio
from collections.abc import Callable
from typing import Any

import holdfast as hf


async def answered(
    runtime: hf.Runtime, run: hf.Run[Any], agrees: Callable[[Any], bool], *, limit_seconds: float = 20.0
) -> list[hf.Event]:
    """Answer what a run asks whenever it rests, until it has ended; return its events."""
    events: list[hf.Event] = []
    known: set[str] = set()
    async with asyncio.timeout(limit_seconds):
        async for event in run.events():
            events.append(event)
            if isinstance(event, hf.events.RunParked):
                for question in await runtime.questions():
                    if question.id not in known:
                        known.add(question.id)
                        await runtime.answer(question, agrees(question), by="ann")
    return events
