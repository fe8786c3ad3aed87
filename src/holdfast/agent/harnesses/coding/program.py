"""A program at work in a directory: started under a keeper, alone there, read within bounds, and surely ended."""

import asyncio
import errno
import fcntl
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from msgspec import Struct

from holdfast.agent.harnesses.coding import keeper
from holdfast.agent.harnesses.coding.spool import Spool
from holdfast.core import limits

_READ_BYTES: Final = 64 * 1024
_TAIL_BYTES: Final = 4096
_TAIL_LINES: Final = 8
_LOOK_SECONDS: Final = 0.02
_SEE_OFF_SECONDS: Final = 0.005
_LATE_SECONDS: Final = 10.0
"""How long a keeper may take over its grace to see the last process off before nobody waits for it any more."""


class Launch(Struct, frozen=True):
    """Everything that one start of a program is made from."""

    command: Sequence[str]
    env: Mapping[str, str]
    prompt: bytes = b""
    """What it reads on its standard input, before that ends."""
    grace_seconds: float = 5.0
    """How long it may take to stop by itself once it shall."""
    output_bytes: int = limits.PROGRAM_BYTES


class Ending(Struct, frozen=True):
    """How a program came to its end: by itself with a status, or by a signal; or it wrote more than is taken."""

    status: int | None = None
    signal: int | None = None
    overflowed: bool = False

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was ended by {signal.Signals(self.signal).name}"
        return f"ended with status {self.status}"


class NotStarted(Exception):
    """The program was not executed, so that nothing was done; `missing` where there is no such program."""

    def __init__(self, why: str, *, missing: bool = False) -> None:
        super().__init__(why)
        self.missing = missing


class Directory:
    """A directory that nobody else works in, as long as it is held; a program that is started there takes it over."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._held = True

    @classmethod
    async def hold(cls, path: str, wait_seconds: float) -> "Directory | None":
        """Return the directory once it is free; None if it is not within that time.

        Raises:
            OSError: it cannot be opened.
        """
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            until = asyncio.get_running_loop().time() + wait_seconds
            while not _lock(file):
                if asyncio.get_running_loop().time() > until:
                    os.close(file)
                    return None
                await asyncio.sleep(_LOOK_SECONDS)
        except BaseException:
            os.close(file)
            raise
        return cls(file)

    def hand_over(self) -> None:
        """Leave the lock to the program, which has it too."""
        if self._held:
            self._held = False
            os.close(self.file)

    def release(self) -> None:
        """Let others in, unless a program has taken it over."""
        if self._held:
            # In so many words: a fork of this process may have the open file as well.
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.hand_over()


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
    """One life of a program, whose output one reader follows."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._launch, self._process, self._control = launch, process, control
        self._words = bytearray()
        self.tail = Tail()
        self._listening = asyncio.create_task(self._listen())
        self._feeding: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[Ending] | None = None

    async def began(self) -> None:
        """Wait until it is under way, and reads what it is given.

        Raises:
            NotStarted: it is not, and never was.
        """
        command = self._launch.command[0]
        match (await self._word()).split():
            case ["began", _]:
                self._feeding = asyncio.create_task(self._feed(self._launch.prompt))
                self._ending = asyncio.create_task(self._end())
            case ["failed", number]:
                why = f"{command} cannot be executed: {os.strerror(int(number))}"
                raise NotStarted(why, missing=int(number) == errno.ENOENT)
            case _:
                await asyncio.wait([self._listening], timeout=_LATE_SECONDS)
                raise NotStarted(f"{command} was not started: {self.tail or 'its keeper ended'}")

    async def lines(self, spool: Spool) -> AsyncGenerator[bytes, None]:
        """Yield each line as it is written, until it and all that it started has ended; the last may lack its end.

        Raises:
            LineTooLong: a line is longer than is taken.
        """
        assert self._ending is not None
        while True:
            over = self._ending.done()
            some = spool.read()
            for line in some:
                yield line
            if over and not some:
                break
            if not some:
                await asyncio.wait([self._ending], timeout=_LOOK_SECONDS)
        if rest := spool.rest():
            yield rest

    async def ended(self) -> Ending:
        """Wait until it, and all that it started, has ended."""
        assert self._ending is not None
        await asyncio.wait([self._ending])
        await asyncio.wait([self._listening], timeout=_LATE_SECONDS)
        return self._ending.result()

    def stop(self) -> None:
        """Ask its keeper to end it, and all that it started, if they have not ended."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def is_gone(self) -> bool:
        """Say whether nothing of it is left, once nobody waits for its end any more."""
        try:
            while self._control.recv(256):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return self._process.returncode is not None

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """What follows it here."""
        return [task for task in (self._listening, self._feeding, self._ending) if task is not None]

    def close(self) -> None:
        """Give back what it held here; a keeper that has not ended is killed, and takes the program along."""
        self._control.close()
        self._process._transport.close()  # type: ignore[attr-defined]

    async def _end(self) -> Ending:
        match (await self._word()).split():
            case ["exited", status]:
                return Ending(status=int(status))
            case ["killed", number]:
                return Ending(signal=int(number))
            case ["overflowed"]:
                return Ending(overflowed=True)
        # Its keeper was killed, and took it along.
        return Ending(signal=signal.SIGKILL)

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


@asynccontextmanager
async def running(launch: Launch, directory: Directory, spool: Spool) -> AsyncIterator[Program]:
    """Yield a program that is under way; leaving ends it and all that it started, however it is left.

    The directory is the program's from then on, and free once it has ended.

    Raises:
        NotStarted: it was not executed.
    """
    program = await _open(launch, directory, spool)
    try:
        await program.began()
        yield program
    finally:
        await _see_off(program, launch.grace_seconds + _LATE_SECONDS)


async def _open(launch: Launch, directory: Directory, spool: Spool) -> Program:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        order = keeper.Order(
            theirs.fileno(), directory.file, spool.path, launch.output_bytes, launch.grace_seconds, launch.command
        )
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", keeper.__file__, *order.words(),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                env=launch.env, pass_fds=[theirs.fileno(), directory.file], start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
    directory.hand_over()
    return Program(launch, process, ours)


async def _see_off(program: Program, seconds: float) -> None:
    """End a program, even where whoever waits for that is cancelled meanwhile, with all tasks: that comes after it."""
    program.stop()
    for task in program.tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    until = asyncio.get_running_loop().time() + seconds
    while not (all(task.done() for task in program.tasks) and program.is_gone()):
        if asyncio.get_running_loop().time() > until:
            break
        try:
            await asyncio.sleep(_SEE_OFF_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
    program.close()
    if cancelled is not None:
        raise cancelled
