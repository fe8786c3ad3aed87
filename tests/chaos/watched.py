"""`python -m tests.chaos.watched`: a process of the watchers' campaign: a server, or a worker that tells words."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from typing import Any, Final

import uvicorn

import holdfast as hf
from holdfast.server import create_app, runs
from holdfast.server.endpoint import Call
from holdfast.server.wire import Line

TOKEN: Final = "the-token-of-the-watchers"
_WORD_SECONDS: Final = 0.01


async def tell(step: hf.Step[None], number: int, words: int) -> str:
    """Tell some words one by one, always the same."""
    told = [f"{number}.{place} " for place in range(words)]
    for word in told:
        step.emit(word)
        await asyncio.sleep(_WORD_SECONDS)
    return "".join(told)


@hf.durable
async def teller(ctx: hf.Context, steps: int, words: int) -> int:
    """Tell words in some steps."""
    for number in range(steps):
        await ctx.step(tell, number, words)
    return steps


async def _live_only(call: Call, run: Any, after: str | None, follow: bool) -> AsyncGenerator[Line, None]:
    """Be the twin: begin where the run stands now, as a server does that sends on what it hears."""
    info = await call.client.info(run)
    async for line in _LINES(call, run, str(info.last_seq) if after else None, follow):
        yield line


_LINES: Final = runs._lines


async def _serve(address: str, port: int, twin: str) -> None:
    if twin == "live_only":
        runs._lines = _live_only
    sock = socket.create_server(("127.0.0.1", port))
    async with hf.open(address, hf.App(teller), work=False) as runtime:
        config = uvicorn.Config(
            create_app(runtime, token=TOKEN), http="h11", ws="none", lifespan="off", log_config=None,
            log_level="critical",
        )  # fmt: skip
        print("ready", flush=True)
        await uvicorn.Server(config).serve(sockets=[sock])


async def _work(address: str) -> None:
    async with hf.open(address, hf.App(teller)):
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve or work, until killed."""
    what, address, *rest = sys.argv[1:]
    asyncio.run(_work(address) if what == "work" else _serve(address, int(rest[0]), rest[1]))


if __name__ == "__main__":
    main()
