"""A process beside the test's own that uses the same store: `python -m tests.contract.visitor VERB ARGUMENTS`.

It says `ready` once everything is imported and acts at each line it is sent, so that several can act at one moment.
│ open PATH…         open each file in turn, one per line sent, and say the store's id
│ create PATH KEY    make a run of that key and say what came of it
│ write PATH COUNT   start a run, commit COUNT entries one by one, saying each that is on disk
│ take PATH RUN      void every other worker, claim the run, commit one entry, and say the fence
└ die FOLDER [OLD]   kill an opening of a new file, or of a copy of OLD, before each of its statements, and say whether
                     the file opens afterwards
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import apsw

from holdfast.core.ids import RunId
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.contract.story import Pen, a_lease, a_run, a_worker, claimed


async def open_each(*paths: str) -> None:
    """Open each store when told, and say its id."""
    for path in paths:
        wait_for_word()
        store = await SqliteStore.open(path)
        print(store.id, flush=True)
        await store.close()


async def create(path: str, key: str) -> None:
    """Make a run and say what came of it."""
    store = await SqliteStore.open(path)
    wait_for_word()
    outcome = await store.create(a_run(store, key=key))
    print(type(outcome).__name__, flush=True)
    await store.close()


async def write(path: str, count: str) -> None:
    """Commit entries one by one."""
    store = await SqliteStore.open(path)
    wait_for_word()
    pen = Pen(store, await a_lease(store))
    print(pen.lease.row.run, flush=True)
    for n in range(int(count)):
        print(await store.commit(pen.lease, pen.next(str(n))), flush=True)
    await store.close()


async def take(path: str, run: str) -> None:
    """Take a run from whoever has it, and write one entry."""
    store = await SqliteStore.open(path)
    wait_for_word()
    for worker in await store.workers():
        await store.void(worker.worker, why="test")
    lease = await claimed(store, await a_worker(store), RunId(run))
    print(await store.commit(lease, Pen(store, lease).next("taken")), flush=True)
    await store.close()


def die(folder: str, old: str | None = None) -> None:
    """Open a file as often as opening has statements, killed before each in turn; then open every file again."""

    def made(path: str) -> str:
        if old is not None:
            shutil.copyfile(old, path)
        return path

    total = int(told_by(partial(opened, made(f"{folder}/counted.db"), None)))
    for where in range(1, total + 1):
        path = made(f"{folder}/{where}.db")
        told_by(partial(opened, path, where))
        print(int(told_by(partial(opened, path, None))) > 0, flush=True)


def told_by(work: Callable[[], object]) -> str:
    """Return what a process of its own says, which may die of its work."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(writer, 1)
        print(work(), flush=True)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        words = said.read().strip()
    os.waitpid(child, 0)
    return words


def opened(path: str, dies_before: int | None) -> int:
    """Open a store, dying before one of the statements that this takes; return how many there were."""
    seen = 0

    def before(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        nonlocal seen
        seen += 1
        if seen == dies_before:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    async def open_and_close() -> None:
        await (await SqliteStore.open(path)).close()

    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", before))
    asyncio.run(open_and_close())
    return seen


VERBS: dict[str, Callable[..., Awaitable[None]]] = {
    "open": open_each,
    "create": create,
    "write": write,
    "take": take,
}


def wait_for_word() -> None:
    """Wait until the test sends a line."""
    print("ready", flush=True)
    sys.stdin.readline()


async def main(verb: str, *arguments: str) -> None:
    """Do as told."""
    await VERBS[verb](*arguments)


if __name__ == "__main__":
    if sys.argv[1] == "die":
        die(*sys.argv[2:])
    else:
        asyncio.run(main(*sys.argv[1:]))
