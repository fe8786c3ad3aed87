"""Makes the journals of this release: `python -m tests.histories.make`, once, before it is released.

They are written to a folder named after the version and never changed afterwards; the next release replays them.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import events
from holdfast.core import limits
from holdfast.core.checksum import StoredEntry
from holdfast.core.cursor import Cursor
from holdfast.core.ids import RunId
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import RunFilter
from holdfast.testing import MovingClock
from tests.histories import tales

HERE = Path(__file__).parent


async def entries_of(store: Store, run: RunId) -> list[StoredEntry]:
    """Return all of a run's stored entries."""
    entries: list[StoredEntry] = []
    while (page := await store.read(run, Cursor(len(entries)))).entries:
        entries += page.entries
    return entries


async def export(store: Store) -> dict[str, Any]:
    """Return every journal by its run's key, with where the row says that it stands."""
    journals = {}
    for row in await store.list(RunFilter(limit=100)):
        journals[row.key or row.run] = {
            "run": row.run,
            "name": row.name,
            "status": row.status,
            "reason": row.reason,
            "head": row.head.hex(),
            "entries": [
                [entry.seq, entry.kind, entry.version, entry.at, entry.enc, entry.body.decode(), entry.checksum.hex()]
                for entry in await entries_of(store, row.run)
            ],
        }
    return dict(sorted(journals.items()))


async def wait_for(run: hf.Run[Any], kind: type) -> None:
    """Wait until a run's journal holds an entry of that kind."""
    async with asyncio.timeout(60):
        async for event in run.events():
            if isinstance(event, kind):
                return


async def play(path: str, clock: MovingClock) -> None:
    """Write every journal, each cut where it is to be cut."""
    app = hf.App(*tales.TALES, version=tales.VERSION)
    tales.hurdle.set()
    async with hf.open(await SqliteStore.open(path, clock=clock), app) as runtime:
        await runtime.run(tales.ship, "Elm Street 1", key="finished")
        failed = await runtime.start(tales.fail, key="failed")
        await wait_for(failed, events.RunFinished)
        tales.hurdle.clear()
        long = "x" * (limits.INLINE_BYTES + 1)
        await runtime.start(tales.ship, "Elm Street 2", key="cut in a step")
        await runtime.start(tales.transfer, 5, key="cut in a once step")
        await runtime.start(tales.bulky, long, key="with blobs")
        await runtime.start(tales.hasty, key="cancelled by its code")
        await runtime.start(tales.remit, 7, key="waiting for a person")
        await wait_for(await runtime.start(tales.patient, key="waiting for a retry"), events.RunParked)
        async with asyncio.timeout(60):
            # Those that finished passed one; the six others stand at five, of which the hasty one passed one.
            for _ in range(1 + 6):
                await tales.stopped.get()
    # A second life brings the interrupted `once` step of `remit` into doubt; the others are cut again where they were.
    only = hf.App(tales.remit, version=tales.VERSION)
    async with hf.open(await SqliteStore.open(path, clock=clock), only) as runtime:
        await wait_for(await runtime.get(key="waiting for a person"), events.RunParked)


async def main() -> None:
    """Make the journals of this version."""
    folder = HERE / hf.__version__
    if folder.exists() and "--again" not in sys.argv:
        sys.exit(f"{folder.name} is kept already; a released history is never made again")
    folder.mkdir(exist_ok=True)
    clock = MovingClock()
    with tempfile.TemporaryDirectory() as scratch:
        path = f"{scratch}/store.db"
        await play(path, clock)
        store = await SqliteStore.open(path, clock=clock)
        journals = await export(store)
        await store.close()
        (folder / "store.db").write_bytes(Path(path).read_bytes())
    text = json.dumps(journals, indent=1, ensure_ascii=False)
    (folder / "journals.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    asyncio.run(main())
