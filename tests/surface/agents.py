"""Agents for these tests, whose models say what is written here."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.models import ModelCut, Reply, Request, TextPiece, Usage
from holdfast.testing import ScriptedModel, call

HERE = Path(__file__).parent


@hf.tool(effect="once")
def refund(order: str, cents: int) -> str:
    """Pay money back."""
    with (HERE / "ledger.txt").open("a", encoding="utf-8") as ledger:
        ledger.write(f"- refund {order} {cents}\n")
    return f"paid {cents} back for {order}"


@hf.tool(effect="repeat")
def look(order: str) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order, "cents": 4200}


@hf.tool(effect="once", needs_approval=True)
def wipe(disk: str) -> str:
    """Forget everything."""
    return f"{disk} is empty"


class Gated(ScriptedModel):
    """Stops in the middle of its answer while there is a gate."""

    async def ask(self, request: Request, say: Any) -> Reply:
        """Say the line, or its beginning."""
        reply = await super().ask(request, lambda piece: None)
        words = reply.message.text.split(" ")
        for word in words[:3]:
            say(TextPiece(f"{word} "))
        if not reply.message.calls and (HERE / "gate").exists():
            print("at the gate", file=sys.stderr, flush=True)
            await asyncio.Event().wait()
        return reply


LINES = (
    ["I look it up.", call("look", order="42")],
    call("refund", order="42", cents=4200),
    (ModelCut("the stream broke", usage=Usage(input=10, output=1)), "It is paid back."),
)
clerk = hf.Agent(
    "clerk", model=ScriptedModel(*LINES), tools=[look, refund], retry=hf.Retry(attempts=3, first=0.01, most=0.01)
)
keeper = hf.Agent("keeper", model=ScriptedModel(call("wipe", disk="sda"), "It is done."), tools=[wipe])
counter = hf.Agent("counter", model=ScriptedModel("[1, 2]"), output=list[int])
gated = hf.Agent("gated", model=Gated("One two three four five."))
WORDS = ("Hello.", call("wipe", disk="sda"), "It is done.", "You said hello.")
friend = hf.Agent("friend", model=Gated(*WORDS), tools=[wipe])
