"""A loop of somebody's own, as a program: `python looping.py ADDRESS HOW [SECONDS]`; it says how far it is."""

import asyncio
import os
import signal
import sys
import time

import holdfast as hf


def say(word: object) -> None:
    """Tell whoever watches."""
    print(word, flush=True)


def leave(saved: hf.checkpoint.Checkpoint[str], how: str) -> None:
    """End in one of the ways that a loop ends."""
    match how:
        case "wait" | "sigterm" | "sigint" | "sigkill":
            say("waits")
            time.sleep(60)  # killed long before
        case "raise":
            raise ValueError("the loop's own")
        case "exit":
            sys.exit(3)
        case "kill in effect":
            saved.effect("send mail", os.kill, os.getpid(), signal.SIGKILL)
        case _:
            pass


def plain(address: str, how: str, every: float) -> None:
    """Save twice, the second time within the window, and end."""
    opening = hf.checkpoint.open("ticket-42", store=address, every=every, labels={"team": "mail"}, version="7")
    if how == "atexit":
        work(opening.__enter__(), how)
        return
    with opening as saved:
        work(saved, how)


def work(saved: hf.checkpoint.Checkpoint[str], how: str) -> None:
    """Save twice, and go on to the end."""
    saved.save(["one"], 1, "model")
    say(saved.save(["one", "two"], 2, "tools"))
    leave(saved, how)


async def in_async(address: str, how: str, every: float) -> None:
    """Do the same in async code."""
    async with hf.checkpoint.open("ticket-42", store=address, every=every) as saved:
        await saved.save(["one"], 1, "model")
        say(await saved.save(["one", "two"], 2, "tools"))
        say("waits")
        await asyncio.sleep(60)


if __name__ == "__main__":
    address, how = sys.argv[1:3]
    every = float(sys.argv[3]) if len(sys.argv) > 3 else 1000.0
    if how.startswith("async"):
        asyncio.run(in_async(address, how, every))
    else:
        plain(address, how, every)
