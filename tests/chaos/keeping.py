"""A conversation that a provider keeps, held by a process that may die anywhere in it."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import httpx2

import holdfast as hf
from holdfast.agent.harness import Event
from holdfast.agent.harnesses.line import Line
from holdfast.agent.harnesses.stateful import StatefulSession
from holdfast.agent.harnesses.wire import Fold
from holdfast.engine import chunks
from holdfast.harness import GeminiInteractions, OpenAIResponses
from holdfast.store import point
from holdfast.store.clock import system_clock
from tests.chaos.homes import home
from tests.chaos.kept_twins import KILL_TWINS
from tests.rigs.provider import Answer, Call

for _early in ("httpcore2._backends.anyio", "httpcore2._async.http11", "anyio._backends._asyncio", "genai_prices.data"):
    import_module(_early)  # what a first request would import: here, before the fork, no life pays for it

CONVERSATION: Final = "talk"
TURNS: Final = ("Sell the boat.", "And the oars?")
ANSWERS: Final[Mapping[str, Answer]] = {
    TURNS[0]: Answer(
        tokens=["I ", "will."],
        reasoning=["A boat."],
        calls=[Call("c1", "look", '{"at": "the é boat"}'), Call("c2", "sell", '{"what": "boat"}')],
    ),
    TURNS[1]: Answer(tokens=["They ", "stay ", "here."]),
}
"""What the provider says to each question."""
RESULT: Final = Answer(tokens=["It ", "is ", "sold. ", "🙂"])
"""What it says to results."""
TOKENS: Final = 1_000_000
_STUCK_SECONDS: Final = 60.0
_KINDS: Final = {"openai": OpenAIResponses, "gemini": GeminiInteractions}


@hf.tool(effect="repeat")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is fine"


@hf.tool(effect="repeat", needs_approval=True)
async def sell(what: str) -> str:
    """Sell something."""
    return f"the {what} is sold"


AGENTS: Final = {
    kind: hf.Agent(kind, harness=made(kind, rest_seconds=0.05), tools=[look, sell], instructions="Be brief.",
                   retry=hf.Retry(attempts=6, first=0.01))
    for kind, made in _KINDS.items()
}  # fmt: skip


def app() -> hf.App:
    """Return what is served."""
    return hf.App(*AGENTS.values(), version="1")


def _be_mortal() -> None:
    """Let this process come to a point before and after each request, and behind each event that it takes in."""
    taken, sent = StatefulSession._taken, Line._sent
    heard: dict[str, int] = {}

    def take(self: StatefulSession, fold: Fold, data: str) -> list[Event]:
        events = taken(self, fold, data)
        heard[fold.id] = heard.get(fold.id, 0) + 1
        point.reached(f"event {heard[fold.id]}")
        return events

    async def send(self: Line, method: str, *rest: Any) -> httpx2.Response:
        point.reached(f"asks {method}")
        response = await sent(self, method, *rest)
        point.reached(f"was answered {method}")
        return response

    StatefulSession._taken, Line._sent = take, send  # type: ignore[method-assign, assignment]
    chunks._GATHER_SECONDS = 0.002  # type: ignore[misc]


async def converse(place: str, kind: str, url: str, twin: str = "") -> list[str]:
    """Hold the conversation, or what is left of it, and return what was answered."""
    os.environ |= {"OPENAI_BASE_URL": f"{url}/v1", "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": ""}
    KILL_TWINS[twin]()
    _be_mortal()
    store = await home(place).open(system_clock)
    async with hf.open(store, app()) as runtime:
        asking = asyncio.create_task(_agree(runtime))
        try:
            said = []
            for number, text in enumerate(TURNS):
                run = await runtime.start(
                    AGENTS[kind], text, key=f"turn-{number}", conversation=CONVERSATION,
                    budget=hf.Budget(tokens=TOKENS),
                )  # fmt: skip
                said.append(await run.result(timeout=_STUCK_SECONDS))
            return said
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking


async def _agree(runtime: hf.Runtime) -> None:
    """Agree to whatever is asked."""
    while True:
        for question in await runtime.questions():
            with suppress(hf.Conflict, hf.NotFound):
                await runtime.answer(question, True, by="ann")
        await asyncio.sleep(0.005)
