"""The program that a fleet of workers serves: its acts are noted outside the store, and some runs wait to be killed."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import holdfast as hf
from holdfast.core import limits

HERE = Path(__file__).parent
if "TEST_LEASE_SECONDS" in os.environ:
    vars(limits)["LEASE_SECONDS"] = float(os.environ["TEST_LEASE_SECONDS"])


@hf.step(effect="once")
def act(number: int, place: int) -> int:
    """Write down, where no journal can take it back, that this was done."""
    file = os.open(HERE / "acts.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{number}.{place}\n".encode())
    os.close(file)
    return place


def wait_for_death(number: int) -> None:
    """Tell which process this is, and wait for its end; whoever comes second passes."""
    try:
        os.close(os.open(HERE / f"{number}.waited", os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    with (HERE / "victim").open("w") as pipe:
        pipe.write(f"{os.getpid()}\n")
    threading.Event().wait()


@hf.durable
async def chain(ctx: hf.Context, number: int, doomed: bool) -> list[int]:
    """Act three times; return what is known to be done."""
    done = []
    for place in range(3):
        if doomed and place == 1:
            await ctx.step(wait_for_death, number)
        # A kill between the act and its entry leaves it in doubt: nobody knows, so it is not done again.
        with suppress(hf.InDoubt):
            done.append(await ctx.step(act, number, place))
    return done
