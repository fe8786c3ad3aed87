"""One life of a process that drives an agent of the OpenAI Agents SDK, and may die inside one of its tools."""

from pathlib import Path
from typing import Any

from agents import Agent, OpenAIResponsesModel, RunConfig, function_tool
from openai import AsyncOpenAI

import holdfast as hf
from holdfast.integrations.openai_agents import HoldfastSession, current_step, run, session_change
from tests.integrations.ledger import Ledger


class Session(HoldfastSession):
    """A session whose process may die right after a change is on disk, before anybody was told."""

    def __init__(self, session_id: str, runtime: hf.Runtime, ledger: Ledger) -> None:
        super().__init__(session_id, runtime)
        self._ledger = ledger

    async def _send(self, text: str, key: str) -> int:
        place = await super()._send(text, key)
        self._ledger.note("sent")
        return place


async def live(address: str, url: str, ledger_file: str, die_in: str = "") -> Any:
    """Drive the ticket to its end; return the answer and what its session holds."""
    ledger = Ledger(Path(ledger_file), die_in)

    @function_tool
    async def look(order: str) -> str:
        """Look an order up."""
        ledger.note("look")
        return f"order {order}: broken"

    @function_tool
    def note(text: str) -> str:
        """Note something."""
        ledger.note("note", current_step().idempotency_key)
        return "noted"

    @function_tool
    def refund(order: str) -> str:
        """Pay money back."""
        ledger.note("refund")
        return "paid"

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        clerk = Agent(name="clerk", model=OpenAIResponsesModel("clerk", client), tools=[look, note, refund])

        @hf.durable
        async def ticket(ctx: hf.Context, text: str) -> str:
            result = await run(
                ctx, clerk, text, session=Session("ann", runtime, ledger), run_config=RunConfig(tracing_disabled=True),
                policies={"look": {"effect": "repeat"}, "note": {"effect": "keyed"}},
            )  # fmt: skip
            return str(result.final_output)

        async with hf.open(address, hf.App(ticket, session_change, version="1")) as runtime:
            started = await runtime.start(ticket, "It broke.", key="ticket")
            return [await started.result(timeout=20), await HoldfastSession("ann", runtime).get_items()]


async def add(address: str, ledger_file: str, name: str, count: int) -> None:
    """Add items to a session one by one, each noted once it is acknowledged; the fourth note is the end."""
    ledger = Ledger(Path(ledger_file), f"{name} 3")
    async with hf.open(address, hf.App(session_change, version="1")) as runtime:
        session = HoldfastSession("shared", runtime)
        for number in range(count):
            await session.add_items([{"role": "user", "content": f"{name} {number}"}])
            ledger.note(f"{name} {number}")


async def pop(address: str, count: int) -> list[Any]:
    """Pop items of a session, and return them."""
    async with hf.open(address, hf.App(session_change, version="1")) as runtime:
        session = HoldfastSession("shared", runtime)
        return [await session.pop_item() for _ in range(count)]
