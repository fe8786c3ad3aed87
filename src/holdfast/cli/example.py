"""An order of twelve steps, one of which takes money and must not happen twice."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import holdfast as hf

HERE = Path(__file__).parent
LEDGER = HERE / "ledger.txt"
BASKET = ["kettle", "teapot", "cups", "tea"]


def act(what: str, seconds: float) -> None:
    """Do something in the outside world, which no journal can take back: here, a line in a ledger."""
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{os.getpid()} {what}\n")
    time.sleep(seconds)


def check_address(order: str) -> str:
    """A plain function is a step; by default it is safe to repeat."""
    act(f"check_address {order}", 0.3)
    return "12 Harbour Street"


def pick(item: str) -> str:
    """Take an item from its shelf."""
    act(f"pick {item}", 0.3)
    return f"{item} picked"


def add_up(items: int) -> int:
    """Return what the basket costs, in cents."""
    act(f"add_up {items}", 0.3)
    return items * 1050


def find_charge(order: str, cents: int) -> Any:
    """Ask the bank whether an order was charged, after a crash left that in doubt."""
    charged = f" charge {order} {cents}\n" in LEDGER.read_text(encoding="utf-8")
    return f"receipt-{order}" if charged else hf.NOT_DONE


@hf.step(effect="once", verify=find_charge, timeout=30)
def charge(order: str, cents: int) -> str:
    """Take money. The bank is slow: the money is gone long before it answers."""
    act(f"charge {order} {cents}", 5)
    return f"receipt-{order}"


def pack(item: str) -> str:
    """Put an item into the parcel."""
    act(f"pack {item}", 0.3)
    return f"{item} packed"


def ship(address: str) -> str:
    """Hand the parcel over."""
    act(f"ship {address}", 0.3)
    return "on its way"


@hf.durable
async def fulfil(ctx: hf.Context, order: str) -> dict[str, str]:
    """Killed anywhere and run again, this goes on from the last step it recorded."""
    address = await ctx.step(check_address, order)
    for item in BASKET:
        await ctx.step(pick, item)
    cents = await ctx.step(add_up, len(BASKET))
    receipt = await ctx.step(charge, order, cents)
    for item in BASKET:
        await ctx.step(pack, item)
    parcel = await ctx.step(ship, address)
    return {"receipt": receipt, "parcel": parcel}


if __name__ == "__main__":
    number = sys.argv[1] if len(sys.argv) > 1 else "7"
    print(hf.run(fulfil, number, key=f"order-{number}", store=f"sqlite:///{HERE / 'demo.db'}"))  # noqa: T201
