"""A conversation of many turns with one agent: what it weighs, and what a late turn costs beside an early one."""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Final

import holdfast as hf
from benchmarks.workload import MARKER, stored_bytes
from holdfast.agent.model import Reply, Request, Say
from holdfast.core.message import Message, Text

WINDOW: Final = 50


class Echo:
    """A model that answers at once with a text of a given length, another one each time."""

    name = lane = "benchmark:echo"

    def __init__(self, message_bytes: int) -> None:
        self._bytes = message_bytes

    async def ask(self, request: Request, say: Say) -> Reply:
        """Answer."""
        return Reply(Message("assistant", (Text(filler(len(request.messages), self._bytes)),)))


def filler(number: int, message_bytes: int) -> str:
    """Return a text of that many bytes, unlike every other."""
    return f"message {number} ".ljust(message_bytes, "x")


async def talk(directory: Path, turns: int, message_bytes: int) -> dict[str, float]:
    """Hold the conversation, weigh its closed store, and return processor seconds per turn at its ends."""
    agent = hf.Agent("echo", model=Echo(message_bytes))
    costs: list[float] = []
    async with hf.open(f"sqlite:///{directory / 'holdfast.db'}", hf.App(agent, version="benchmark")) as runtime:
        conversation = runtime.conversation("talk", agent)
        for turn in range(turns):
            began = time.process_time()
            run = await conversation.send(filler(turn, message_bytes))
            await run.result(timeout=60)
            costs.append(time.process_time() - began)
    return {"bytes": stored_bytes(directory), "early": _median(costs[:WINDOW]), "late": _median(costs[-WINDOW:])}


def _median(costs: list[float]) -> float:
    return sorted(costs)[len(costs) // 2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    given = parser.parse_args()
    print(MARKER + json.dumps(asyncio.run(talk(given.directory, given.turns, given.bytes))), flush=True)
