"""A worker that holds a conversation: an agent with tools of every effect and a clerk under it, which may die."""

import asyncio
import contextlib
import os
from importlib import import_module
from typing import Any, Final

import holdfast as hf
from holdfast.agent.model import Piece, Reply, Request, Say, TextPiece
from holdfast.engine import chunks
from holdfast.engine.surroundings import Surroundings
from holdfast.models import OpenAI
from holdfast.runtime import Runtime
from holdfast.store import point
from holdfast.store.clock import system_clock
from tests.chaos import twins
from tests.chaos.actor import Ledger
from tests.chaos.homes import home
from tests.chaos.script import CLERK, DESK

for _early in ("httpcore2._backends.anyio", "httpcore2._async.http11", "anyio._backends._asyncio", "genai_prices.data"):
    import_module(_early)  # what a first request would import: here, before the fork, no life pays for it

_GATHER_SECONDS: Final = 0.002
"""Less than by itself, so that a short answer comes in several pieces."""
_HASTY_SECONDS: Final = 0.01
"""What takes longer than this parks the run."""
SERVES: Final = b"serves\n"
WAITS: Final = b"waits\n"
_ledger: Ledger
_bell: str


def _did(tool: str, what: str, **facts: Any) -> str:
    """Note that a tool's work is done; the process may die before and after."""
    point.reached(f"{tool} begins")
    _ledger.note("did", tool=tool, call=what, **facts)
    point.reached(f"{tool} ends")
    return f"{tool} {what} is done"


@hf.tool(effect="repeat")
async def look(what: str) -> str:
    """Look something up."""
    return _did("look", what)


@hf.tool(effect="keyed")
async def hold(step: hf.Step[None], what: str) -> str:
    """Reserve something."""
    return _did("hold", what, key=step.idempotency_key)


@hf.tool
async def pay(what: str) -> str:
    """Pay for something."""
    return _did("pay", what)


@hf.tool
def write(what: str) -> str:
    """Write a letter, in a thread."""
    return _did("write", what)


@hf.tool
async def stamp(what: str) -> str:
    """Stamp something."""
    return _did("stamp", what)


@hf.tool(needs_approval=True)
async def refund(what: str, cents: int) -> str:
    """Give money back."""
    return _did("refund", what, cents=cents)


@hf.tool(effect="repeat")
async def dawdle(what: str) -> str:
    """Take as long as somebody outside wants."""
    reader, writer = await asyncio.open_unix_connection(_bell)
    writer.write(WAITS)
    await reader.readline()
    writer.close()
    return _did("dawdle", what)


ONCE: Final = frozenset({"pay", "write", "stamp", "refund"})
KEYED: Final = frozenset({"hold"})


class _Mortal(OpenAI):
    """A model over a real line; whoever listens may die before, between and after its pieces."""

    async def ask(self, request: Request, say: Say) -> Reply:
        def told(piece: Piece) -> None:
            say(piece)
            if isinstance(piece, TextPiece):
                point.reached("a piece")

        point.reached("asks")
        reply = await super().ask(request, told)
        point.reached("was answered")
        return reply


clerk = hf.Agent(CLERK, model=_Mortal(CLERK), instructions="Stamp.", tools=[stamp, look], description="Stamps.")
desk = hf.Agent(
    DESK,
    model=_Mortal(DESK),
    instructions="Do what you are asked to.",
    tools=[look, hold, pay, write, refund, dawdle, clerk],
    tool_limit=3,
)


def app() -> hf.App:
    """Return what a worker serves, and whoever speaks to it knows."""
    return hf.App(desk, clerk, version="1")


class _Hasty(Runtime):
    """A runtime that parks at once what waits."""

    def _surroundings(self, deps: Any) -> Surroundings:
        around = super()._surroundings(deps)
        around.patience_seconds = _HASTY_SECONDS
        return around


async def serve(place: str, ledger: str, bell: str, models: str, twin: str = "") -> None:
    """Work on the store at `place` until whoever listens at `bell` hangs up."""
    global _ledger, _bell
    _ledger, _bell = Ledger(ledger, str(os.getpid())), bell
    os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"] = models, ""
    chunks._GATHER_SECONDS = _GATHER_SECONDS  # type: ignore[misc]
    twins.apply(twin, place)
    store = await home(place).open(system_clock, **twins.options(twin))
    runtime = _Hasty(store, app(), concurrency=8)
    await runtime._start_working(None)
    # A worker that died while it left has a successor whom nobody waits for any more.
    with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
        reader, writer = await asyncio.open_unix_connection(bell)
        writer.write(SERVES)
        await reader.read()
        writer.close()
    await runtime.close()
