"""A support agent that pays money back only when a person has agreed, and never twice.

holdfast run examples/support.py "Order 42 arrived broken." --key ticket-42    # until it asks
holdfast answer RUN --yes --by you                                             # the list: holdfast answer
holdfast run examples/support.py "Order 42 arrived broken." --key ticket-42    # pays, and answers
holdfast chat examples/support.py                                              # or talk with it

Kill it anywhere and run it again. It needs no key: without MODEL its model says the lines that are written below; with
MODEL=openai:gpt-5-mini, or another, a real one is asked.
"""

import os
from pathlib import Path

import holdfast as hf
from holdfast.models import Model
from holdfast.testing import ScriptedModel, call

LEDGER = Path("refunds.txt")
ORDERS: dict[str, dict[str, str | int]] = {"42": {"item": "a vase", "cents": 2000, "arrived": "yesterday"}}


@hf.tool(effect="repeat")
def find_order(order: str) -> dict[str, str | int]:
    """Look an order up."""
    if order not in ORDERS:
        raise hf.ToolError(f"There is no order {order}.")
    return ORDERS[order]


@hf.tool(effect="once", needs_approval=True)
def refund(order: str, cents: int) -> str:
    """Pay money back to the customer."""
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{order} {cents}\n")
    return f"{cents} cents are on their way"


def scripted() -> ScriptedModel:
    """Return a model that says what is written here, without a key."""
    return ScriptedModel(
        ["Let me look at your order.", call("find_order", order="42")],
        call("refund", order="42", cents=2000),
        "I am sorry about the vase. 20.00 are on their way back to you.",
        "Is there anything else?",
    )


model: Model | str = os.environ.get("MODEL") or scripted()
support = hf.Agent(
    "support",
    model=model,
    instructions="You help customers of a shop. Look an order up before you pay anything back.",
    tools=[find_order, refund],
)
