"""A program that works on a directory and writes lines: started under a keeper, read within bounds, surely ended."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from msgspec import Struct

from holdfast.agent.harnesses.coding import keeper
from holdfast.core import limits

_READ_BYTES: Final = 64 * 1024
_TAIL_BYTES: Final = 4096
_TAIL_LINES: Final = 8
_LATE_SECONDS: Final = 10.0
"""How long a keeper may take over its grace to see the last process off before nobody waits for it any more."""


class Launch(Struct, frozen=True):
    """Everything that one start of a program is made from."""

    command: Sequence[str]
    workspace: str
    env: Mapping[str, str]
    prompt: bytes = b""
    """What it reads on its standard input, before that ends."""
    grace_seconds: float = 5.0
    """How long it may take to stop by itself once it shall."""
    wait_seconds: float = 15.0
    """How long another may be at work in the same directory before this one is not started."""
    line_bytes: int = limits.LINE_BYTES
    output_bytes: int = limits.PROGRAM_BYTES


class Ending(Struct, frozen=True):
    """How a program came to its end: by itself with a status, or by a signal."""

    status: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was ended by {signal.Signals(self.signal).name}"
        return f"ended with status {self.status}"


class NotStarted(Exception):
    """The program was not executed, so that nothing was done; `missing` where there is no such program."""

    def __init__(self, why: str, *, missing: bool = False, busy: bool = False) -> None:
        super().__init__(why)
        self.missing, self.busy = missing, busy


class TooMuch(Exception):
    """The program writes more than is taken."""


class Tail:
    """The end of what a program writes on its standard error."""

    def __init__(self) -> None:
        self._bytes = b""

    def add(self, some: bytes) -> None:
        """Take some more."""
        self._bytes = (self._bytes + some)[-_TAIL_BYTES:]

    def __str__(self) -> str:
        lines = [line.strip() for line in self._bytes.decode(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-_TAIL_LINES:])


class Program:
    """One life of a program, read by one reader."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._launch, self._process, self._control = launch, process, control
        self._words = bytearray()
        self.tail = Tail()
        self._others = [asyncio.create_task(self._listen())]

    async def began(self) -> None:
        """Wait until it is under way, and reads what it is given.

        Raises:
            NotStarted: it is not, and never was.
        """
        command = self._launch.command[0]
        match (await self._word()).split():
            case ["began", _]:
                self._others.append(asyncio.create_task(self._feed(self._launch.prompt)))
                return
            case ["busy"]:
                raise NotStarted("another program is at work in the same directory", busy=True)
            case ["failed", number]:
                why = os.strerror(int(number))
                raise NotStarted(f"{command} cannot be executed: {why}", missing=True)
            case ["unusable", number]:
                raise NotStarted(f"the directory cannot be used: {os.strerror(int(number))}")
        await asyncio.wait(self._others)
        raise NotStarted(f"{command} was not started: {self.tail or 'its keeper ended'}")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield each line as it is written; the last may lack its end.

        Raises:
            TooMuch: a line, or all of them, are longer than is taken.
        """
        assert self._process.stdout is not None
        rest, total, seen = bytearray(), 0, 0
        while some := await self._process.stdout.read(_READ_BYTES):
            total += len(some)
            if total > self._launch.output_bytes:
                raise TooMuch(f"it wrote more than {self._launch.output_bytes} bytes")
            rest += some
            while (end := rest.find(b"\n", seen)) >= 0:
                yield bytes(rest[:end])
                del rest[: end + 1]
                seen = 0
            seen = len(rest)
            if seen > self._launch.line_bytes:
                raise TooMuch(f"it wrote a line of more than {self._launch.line_bytes} bytes")
        if rest:
            yield bytes(rest)

    async def ended(self) -> Ending:
        """Wait until it, and all that it started, has ended."""
        match (await self._word()).split():
            case ["exited", status]:
                return Ending(status=int(status))
            case ["killed", number]:
                return Ending(signal=int(number))
        # Its keeper was killed, and took it along.
        return Ending(signal=signal.SIGKILL)

    async def stop(self) -> None:
        """End it, and all that it started, if they have not ended; return when nothing of it is left.

        What it still writes is read and forgotten: it could not come to its end if nobody did.
        """
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        assert self._process.stdout is not None
        forgetting = asyncio.create_task(_read_all(self._process.stdout))
        self._others.append(forgetting)
        while await self._word():
            pass
        await forgetting
        await self._process.wait()

    async def close(self) -> None:
        """Give back what it held here; a keeper that has not ended is killed, and takes the program along."""
        for task in self._others:
            task.cancel()
        await asyncio.wait(self._others)
        self._control.close()
        self._process._transport.close()  # type: ignore[attr-defined]

    async def _word(self) -> str:
        """Return the next word of the keeper; empty once there is none."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._words:
            some = await loop.sock_recv(self._control, 256)
            if not some:
                return ""
            self._words += some
        word, _, rest = bytes(self._words).partition(b"\n")
        self._words = bytearray(rest)
        return word.decode()

    async def _feed(self, prompt: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(ConnectionError):  # it may end, or close its input, without reading all
            stdin.write(prompt)
            await stdin.drain()
        stdin.close()
        with suppress(ConnectionError):
            await stdin.wait_closed()

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while some := await self._process.stderr.read(_READ_BYTES):
            self.tail.add(some)


async def _read_all(stream: asyncio.StreamReader) -> None:
    while await stream.read(_READ_BYTES):
        pass


@asynccontextmanager
async def running(launch: Launch) -> AsyncIterator[Program]:
    """Yield a program that is under way; leaving ends it and all that it started, however it is left.

    Raises:
        NotStarted: it was not executed: there is no such program, or another is at work in its directory.
    """
    program = await _open(launch)
    try:
        await program.began()
        yield program
    finally:
        await _see_off(program, launch.grace_seconds + _LATE_SECONDS)


async def _open(launch: Launch) -> Program:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        order = keeper.Order(
            theirs.fileno(), launch.workspace, launch.grace_seconds, launch.wait_seconds, launch.command
        )
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", keeper.__file__, *order.words(),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=launch.env, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
    return Program(launch, process, ours)


async def _see_off(program: Program, seconds: float) -> None:
    """End a program even where whoever waits for that is cancelled meanwhile: what is cancelled comes after it."""
    stopping = asyncio.ensure_future(asyncio.wait_for(program.stop(), seconds))
    cancelled: asyncio.CancelledError | None = None
    while not stopping.done():
        try:
            await asyncio.wait([stopping])
        except asyncio.CancelledError as error:
            cancelled = error
    stopping.exception()
    await program.close()
    if cancelled is not None:
        raise cancelled
