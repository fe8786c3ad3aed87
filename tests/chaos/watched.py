"""`python -m tests.chaos.watched`: forks servers, and workers that tell words, and kills them, as it is told to."""

import asyncio
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine
from importlib import import_module
from typing import Any, Final, NoReturn

import uvicorn

import holdfast as hf
from holdfast.server import create_app, runs
from holdfast.server.endpoint import Call
from holdfast.server.wire import Line, line_of
from holdfast.stream.event import Event

for _early in ("holdfast.store.postgres", "holdfast.store.sqlite", "uvicorn.protocols.http.h11_impl"):
    import_module(_early)  # here, before the fork: whoever is killed has a successor a moment later

TOKEN: Final = "the-token-of-the-watchers"
_WORD_SECONDS: Final = 0.01
_LINES: Final = runs._lines

Ready = Callable[[], object]
"""Called by a process that serves or works."""


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


async def _address_first(call: Call, run: Any, after: str | None, follow: bool) -> AsyncGenerator[Line, None]:
    """Be the twin: believe the address, which a browser that connects again by itself asks for as it did at first."""
    async for line in _LINES(call, run, call.query(runs.Cursor).after or after, follow):
        yield line


def _without_id(event: Event) -> Line:
    """Be the twin: give words no id, so that a browser keeps that of the entry before; lines have it all the same."""
    line = line_of(event)
    return Line(line.type, line.form) if line.type == "chunk" else line


def _become(twin: str) -> None:
    match twin:
        case "live_only":
            runs._lines = _live_only
        case "address_first":
            runs._lines = _address_first
        case "words_without_id":
            vars(runs)["line_of"] = _without_id
        case _:
            assert twin == "none", twin


async def _serve(ready: Ready, address: str, port: str, twin: str) -> None:
    _become(twin)
    # That readers leave in mid-sentence is what this is about, and asyncio's word on it for each of them is not.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    sock = socket.create_server(("127.0.0.1", int(port)))
    async with hf.open(address, hf.App(teller), work=False) as runtime:
        config = uvicorn.Config(
            create_app(runtime, token=TOKEN), http="h11", ws="none", lifespan="off", log_config=None,
            log_level="critical",
        )  # fmt: skip
        ready()
        await uvicorn.Server(config).serve(sockets=[sock])


async def _work(ready: Ready, address: str) -> None:
    async with hf.open(address, hf.App(teller)):
        ready()
        await asyncio.Event().wait()


_KINDS: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {"serve": _serve, "work": _work}


class Nursery:
    """Forks processes, and knows which are alive."""

    def __init__(self) -> None:
        self._alive: set[int] = set()

    def start(self, kind: str, *rest: str) -> str:
        """Fork one, and return its number when it is ready, or nothing if it ended before."""
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            _live(_KINDS[kind](lambda: os.write(writing, b"."), *rest))
        os.close(writing)
        self._alive.add(pid)
        ready = os.read(reading, 1)
        os.close(reading)
        return str(pid) if ready else ""

    def kill(self, pid: str) -> str:
        """Kill one, and return the signal that it died by."""
        os.kill(int(pid), signal.SIGKILL)
        self._alive.remove(int(pid))
        return str(-os.waitstatus_to_exitcode(os.waitpid(int(pid), 0)[1]))

    def close(self) -> None:
        """Kill all of them."""
        for pid in list(self._alive):
            self.kill(str(pid))


def _live(life: Coroutine[Any, Any, None]) -> NoReturn:
    """Live in a process of its own, and never return."""
    try:
        asyncio.run(life)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> None:
    """Do what each line says, and answer with one."""
    nursery = Nursery()
    try:
        for line in sys.stdin:
            what, *rest = line.split()
            print(nursery.kill(*rest) if what == "kill" else nursery.start(what, *rest), flush=True)
    finally:
        nursery.close()


if __name__ == "__main__":
    main()
