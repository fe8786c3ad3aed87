"""What the tests of agents share: what was said in a run, by its journal, and a word to a run."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

import holdfast as hf
from holdfast.agent.model import Request
from holdfast.core import entry as e
from holdfast.core.ids import RunId
from holdfast.core.message import Message, ToolResult
from holdfast.core.post import STEER, SteerBody
from holdfast.core.transcript import transcript
from holdfast.store.protocol import Store
from holdfast.store.value import NewPost

LIMIT_SECONDS = 20.0


async def entries_of(run: hf.Run[Any]) -> list[e.Entry]:
    """Return a run's entries."""
    return [event async for event in run.events(follow=False) if isinstance(event, e.Entry)]


async def said_in(run: hf.Run[Any]) -> list[Message]:
    """Return what was said in a run, by its journal alone."""
    return transcript(await entries_of(run))


async def asked(run: hf.Run[Any]) -> None:
    """Wait until a run rests because it has asked somebody."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async for event in run.events():
            if isinstance(event, e.RunParked) and event.reason == "ask":
                return


def results_of(messages: Sequence[Message]) -> list[ToolResult]:
    """Return what the model was told of its calls, in order."""
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


def told(request: Request) -> str:
    """Say what the model was told last."""
    return " | ".join(result.text for result in results_of(request.messages[-1:]))


async def steer(store: Store, run: str, text: str, key: str = "word") -> None:
    """Tell a run something while it is under way."""
    body = msgspec.json.encode(SteerBody(text, by="ann"))
    await store.post(NewPost(run=RunId(run), kind=STEER, key=f"{STEER}/{key}", body=body, control=True))
