"""Whatever is asked of them, in whatever order, all drivers answer alike."""

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.checksum import ZERO
from holdfast.core.cursor import START
from holdfast.core.entry import BudgetMove
from holdfast.core.ids import RunId, WorkerId, new_worker_id
from holdfast.core.status import Status
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Committed, Created, NewChunk, NewRun, RowChange, RunFilter
from holdfast.testing import MovingClock
from holdfast.testing.contract.story import NAME, Pen, a_post, a_run
from tests.rigs.server import in_schema

RUNS, WORKERS = 4, 3
_numbers = itertools.count(1)
Admin = tuple[str, psycopg.Connection]
Opened = Callable[[MovingClock], AbstractAsyncContextManager[Store]]
run = st.integers(0, RUNS - 1)
worker = st.integers(0, WORKERS - 1)
small = st.integers(0, 3)
statuses = st.sampled_from([Status.WAITING, Status.QUEUED, Status.PAUSED, Status.COMPLETED, Status.QUARANTINED])
changes = st.none() | st.builds(
    RowChange, status=statuses, reason=st.sampled_from(["", "retry"]), due_at=st.none() | small,
    refused=st.sampled_from(["", "|v1|", "|v2|"]), seen_seq=st.none() | small,
)  # fmt: skip
only = st.none() | st.lists(run, max_size=2)
Op = tuple[Any, ...]
ops: st.SearchStrategy[Op] = st.one_of(
    st.tuples(st.just("create"), run, worker | st.none()),
    # Room for all or for nobody: which of several equals comes first is nobody's promise.
    st.tuples(st.just("claim"), worker, st.sampled_from(["v1", "v2"]), st.sampled_from([0, 9]), only, st.booleans()),
    st.tuples(
        st.just("commit"), run, small, changes, st.none() | small, st.none() | small, st.booleans(), st.booleans()
    ),
    st.tuples(st.just("commit all"), run, run, small),
    st.tuples(st.just("post"), run, small, st.booleans()),
    st.tuples(st.just("chunks"), run),
    st.tuples(st.just("release"), worker, st.lists(run, max_size=2)),
    st.tuples(st.just("void"), worker),
    st.tuples(st.just("register"), worker),
    st.tuples(st.just("advance"), small),
    st.tuples(st.just("list"), statuses | st.none()),
    st.tuples(st.just("delete"), st.lists(run, max_size=RUNS), st.booleans()),
)


class Player:
    """Plays operations on one store, knowing no more than a worker would."""

    def __init__(self, store: Store, clock: MovingClock, runs: list[NewRun], workers: list[WorkerId]) -> None:
        self.store, self.clock, self.runs, self.workers = store, clock, runs, workers
        self.pens: dict[int, Pen] = {}
        self.chunk = 0

    def id(self, number: int) -> RunId:
        """Return a run's id."""
        return self.runs[number].row.run

    async def play(self, op: Op) -> Any:
        """Do one thing and return what was answered."""
        verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "create": self.create, "claim": self.claim, "commit": self.commit, "commit all": self.commit_all,
            "post": self.post, "chunks": self.chunks, "release": self.release, "void": self.void,
            "register": self.register, "advance": self.advance, "list": self.list,
            "delete": self.delete,
        }  # fmt: skip
        return await verbs[op[0]](*op[1:])

    async def create(self, number: int, by: int | None) -> Any:
        """Create a run once; later tries meet its key."""
        answer = await self.store.create(self.runs[number], worker=None if by is None else self.workers[by])
        if isinstance(answer, Created) and answer.lease is not None:
            self.pens[number] = Pen(self.store, answer.lease)
        return answer

    async def claim(self, by: int, code: str, limit: int, only: list[int] | None, suspects: bool) -> Any:
        """Claim; whatever was held before under an older lease is now written under that lease no more."""
        runs = None if only is None else [self.id(number) for number in dict.fromkeys(only)]
        leases = await self.store.claim(self.workers[by], {NAME: code}, limit=limit, runs=runs, suspects=suspects)
        for lease in leases:
            number = next(n for n in range(len(self.runs)) if self.id(n) == lease.row.run)
            self.pens[number] = Pen(self.store, lease)
        return sorted(leases, key=lambda lease: lease.row.run)

    async def commit(
        self, number: int, count: int, change: RowChange | None, inbox: int | None, control: int | None, *flags: bool
    ) -> Any:
        """Commit under the last lease that was got, good or not."""
        pen = self.pens.get(number)
        if pen is None:
            return None
        progress, whole = flags
        place = (pen.seq, pen.head)
        rest: dict[str, Any] = {}
        if whole:
            rest = {
                "posts": [a_post(self.id((number + 1) % RUNS), f"from {number}", control=True)],
                "consumed": [post.seq for post in await self.store.inbox(self.id(number))],
                "drop": ["*"],
                "budget": [BudgetMove(channel="c", total=3, spent=1)],
            }
        texts = [f"{number}.{n}" for n in range(max(count, 1))]
        commit = pen.next(*texts, change=change, inbox=inbox, control=control, progress=progress, **rest)
        outcome = await self.store.commit(pen.lease, commit)
        if not isinstance(outcome, Committed):
            pen.seq, pen.head = place
        return outcome

    async def commit_all(self, one: int, other: int, count: int) -> Any:
        """Queue commits of two runs, then wait for all of them."""
        asked = []
        for number in (one, other) * count:
            pen = self.pens.get(number)
            if pen is not None:
                asked.append((pen, self.store.commit(pen.lease, pen.next(f"all {number}"))))
        outcomes = [await pending for _, pending in asked]
        for (pen, _), outcome in zip(asked, outcomes, strict=True):
            if not isinstance(outcome, Committed):
                row = await self.store.get(pen.lease.row.run)
                pen.seq, pen.head = (row.last_seq, row.head) if row is not None else (0, ZERO)
        return outcomes

    async def post(self, number: int, key: int, control: bool) -> Any:
        """Post, if there is somebody to post to."""
        if await self.store.get(self.id(number)) is None:
            return None
        return await self.store.post(a_post(self.id(number), str(key), control=control))

    async def chunks(self, number: int) -> Any:
        """Add a chunk under the last lease."""
        pen = self.pens.get(number)
        self.chunk += 1
        return None if pen is None else await self.store.chunks(pen.lease, [NewChunk(self.chunk, "s", 1, 0, b"1")])

    async def release(self, by: int, keep: list[int]) -> Any:
        """Release a worker's leases."""
        return await self.store.release(self.workers[by], keep=[self.id(number) for number in keep])

    async def void(self, by: int) -> Any:
        """Declare a worker dead."""
        return await self.store.void(self.workers[by], why="test")

    async def register(self, by: int) -> Any:
        """Make a worker known."""
        return await self.store.register(self.workers[by], lock=None)

    async def advance(self, micros: int) -> Any:
        """Let time pass."""
        return self.clock.advance(micros / 1e6)

    async def list(self, status: Status | None) -> Any:
        """List runs by status."""
        return await self.store.list(RunFilter(status=status))

    async def delete(self, numbers: Sequence[int], trial: bool) -> Any:
        """Delete what has ended, or see what would go."""
        deleted = await self.store.delete([self.id(number) for number in numbers], trial=trial)
        return sorted(deleted.runs), deleted.kept

    async def everything(self) -> Any:
        """Return all that can be read."""
        seen = []
        for number in range(len(self.runs)):
            if await self.store.get(self.id(number)) is not None:
                seen.append((await self.store.read(self.id(number), START), await self.store.inbox(self.id(number))))
        return seen, [(row.worker, row.pulse, row.leases) for row in await self.store.workers()]


def plain(answer: Any) -> Any:
    """Return an answer without what may differ: a run's number inside its store."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(item) for name, item in value.items() if name != "number" or "offset" in value}
        if isinstance(value, list | tuple):
            return [without(item) for item in value]
        return value

    return without(msgspec.to_builtins(answer, builtin_types=(bytes,)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ops, min_size=5, max_size=40))
def test_memory_and_sqlite_answer_alike_at_every_step(story: list[Op]) -> None:
    """Outcomes, refusals, rows, journals, chunks and inboxes are the same after every operation."""
    asyncio.run(compare(story, in_a_file))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], phases=(Phase.explicit, Phase.generate))
@given(story=st.lists(ops, min_size=5, max_size=30))
def test_memory_and_postgresql_answer_alike_at_every_step(postgres_admin: Admin, story: list[Op]) -> None:
    """The same, where many machines share a database."""
    asyncio.run(compare(story, in_schemas_of(postgres_admin)))


@asynccontextmanager
async def in_a_file(clock: MovingClock) -> AsyncIterator[Store]:
    """Give a store in a file."""
    with tempfile.TemporaryDirectory() as folder:
        # What is compared is answers, not durability: syncing would only make it slow.
        store = await SqliteStore.open(str(Path(folder) / "s.db"), clock=clock, synchronous="OFF")
        try:
            yield store
        finally:
            await store.close()


def in_schemas_of(admin: Admin) -> Opened:
    """Return how to give stores in schemas of a server."""
    address, connection = admin

    @asynccontextmanager
    async def opened(clock: MovingClock) -> AsyncIterator[Store]:
        schema = f"alike_{os.getpid()}_{next(_numbers)}"
        store = await PostgresStore.open(in_schema(address, schema), clock=clock)
        try:
            yield store
        finally:
            await store.close()
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())

    return opened


async def compare(story: list[Op], opened: Opened) -> None:
    """Play a story on memory and on another store."""
    clocks = MovingClock(1), MovingClock(1)
    async with opened(clocks[1]) as other_store:
        stores: tuple[Store, Store] = MemoryStore(clock=clocks[0]), other_store
        runs = [
            a_run(stores[0], key=f"k{number}" if number else None, delay_seconds=number / 1e6) for number in range(RUNS)
        ]
        runs[-1] = replace(runs[-1], row=replace(runs[-1].row, parent=runs[-2].row.run))
        workers = [new_worker_id() for _ in range(WORKERS)]
        players = [Player(store, clock, runs, workers) for store, clock in zip(stores, clocks, strict=True)]
        asked = False
        for op in [("register", 0), *story]:
            if op[0] == "create" and op[1] == 0:
                if asked:
                    continue  # without a key the same id twice is no question that anybody asks
                asked = True
            one, other = [plain(await player.play(op)) for player in players]
            assert one == other, op
            one, other = [plain(await player.everything()) for player in players]
            assert one == other, op
        assert await other_store.check() == []


@pytest.mark.parametrize("driver", ["sqlite", "postgres"])
def test_the_story_that_covers_the_most_is_alike(driver: str, request: pytest.FixtureRequest) -> None:
    """One fixed story through every verb, so that a quick look needs no luck."""
    rest = RowChange(status=Status.WAITING, reason="retry", due_at=2, seen_seq=0)
    over = RowChange(status=Status.COMPLETED)
    story: list[Op] = [
        ("create", 1, 0), ("create", 1, None), ("create", 2, None), ("register", 1),
        ("commit", 1, 2, None, None, None, True, True), ("chunks", 1), ("post", 1, 1, True),
        ("commit", 1, 1, None, None, 0, True, False), ("commit", 1, 1, rest, 1, None, True, False),
        ("claim", 1, "v1", 3, None, True), ("void", 0), ("advance", 3), ("claim", 1, "v1", 3, None, True),
        ("commit all", 1, 2, 2), ("release", 1, [1]), ("list", Status.WAITING), ("void", 1),
        ("claim", 1, "v1", 9, None, True), ("register", 1), ("create", 3, 1),
        ("commit", 3, 1, over, None, None, True, True), ("delete", [3, 1, 2], True), ("delete", [3, 1], False),
        ("claim", 1, "v1", 9, [2], True),
        ("commit", 2, 1, over, None, None, True, False), ("delete", [3, 2, 2], False), ("commit all", 3, 2, 1),
        ("create", 3, 0), ("create", 2, None), ("delete", [3], False),
    ]  # fmt: skip
    opened = in_a_file if driver == "sqlite" else in_schemas_of(request.getfixturevalue("postgres_admin"))
    asyncio.run(compare(story, opened))
