"""One life of a process that drives a pydantic-ai agent, and may die inside one of its tools."""

from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import holdfast as hf
from holdfast.integrations.pydantic_ai import HoldfastDurability, current_step, durably
from tests.integrations.ledger import Ledger

_OF_THE_RUN = {"timestamp", "run_id", "conversation_id"}


def told(messages: list[ModelMessage]) -> list[Any]:
    """Return a history as data, without what differs between two runs that say the same."""
    return [_without(message) for message in ModelMessagesTypeAdapter.dump_python(messages, mode="json")]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in _OF_THE_RUN}
    return [_without(each) for each in value] if isinstance(value, list) else value


async def live(address: str, url: str, ledger_file: str, die_in: str = "") -> Any:
    """Drive the ticket to its end; return the answer and the history, as the run returned them."""
    ledger = Ledger(Path(ledger_file), die_in)
    model = OpenAIChatModel("clerk", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, name="clerk", capabilities=[HoldfastDurability()])

    @agent.tool_plain(metadata={"holdfast": {"effect": "repeat"}})
    async def look(order: str) -> str:
        """Look an order up."""
        ledger.note("look")
        return f"order {order}: broken"

    @agent.tool_plain(metadata={"holdfast": {"effect": "keyed"}})
    def note(text: str) -> str:
        """Note something."""
        ledger.note("note", current_step().idempotency_key)
        return "noted"

    @agent.tool_plain
    def refund(order: str) -> str:
        """Pay money back."""
        ledger.note("refund")
        return "paid"

    @hf.durable
    async def ticket(ctx: hf.Context, text: str) -> list[Any]:
        result = await durably(ctx, agent.run(text))
        return [result.output, told(result.all_messages())]

    async with hf.open(address, hf.App(ticket, version="1")) as runtime:
        run = await runtime.start(ticket, "It broke.", key="ticket")
        return await run.result(timeout=20)
