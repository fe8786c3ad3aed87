"""Whatever is asked, given back, voided and claimed, in whatever order: a limit holds, and nobody waits for ever."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.core.ids import WorkerId, new_worker_id
from holdfast.core.limit import Limit
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from holdfast.store.value import Created, Granted, Lease, LimitRow, NewRun, Queued
from holdfast.testing import MovingClock
from holdfast.testing.contract.story import SERVES, Pen, a_run
from tests.contract.test_alike import Opened, in_a_file, in_schemas_of

RUNS, WORKERS = 6, 3
LIMITS = (Limit("slots", at_once=2), Limit("rate", rate=2, per=0.005), Limit("both", at_once=1, rate=3, per=0.01))
Op = tuple[Any, ...]
run = st.integers(0, RUNS - 1)
worker = st.integers(0, WORKERS - 1)
which = st.integers(0, len(LIMITS) - 1)
ops: st.SearchStrategy[Op] = st.one_of(
    st.tuples(st.just("acquire"), run, which, st.integers(-1, 1)),
    st.tuples(st.just("acquire"), run, which, st.just(0)),
    st.tuples(st.just("free"), run, which),
    st.tuples(st.just("commit"), run, which),
    st.tuples(st.just("void"), worker),
    st.tuples(st.just("release"), worker),
    st.tuples(st.just("claim"), worker),
    st.tuples(st.just("advance"), st.integers(1, 8)),
)


class Crew:
    """Workers that use limits on one store, and remember what they were told."""

    def __init__(self, store: Store, clock: MovingClock, runs: list[NewRun], workers: list[WorkerId]) -> None:
        self.store, self.clock, self.runs, self.workers = store, clock, runs, workers
        self.leases: dict[int, Lease] = {}
        self.told: dict[tuple[int, int], int] = {}
        """Under which fence a run was told that it has a slot of a limit, and has not given it back."""
        self.queued: dict[tuple[int, int], int] = {}
        """With which priority a run was told to wait for a limit, under its last lease."""
        self.starts: dict[int, list[int]] = {number: [] for number in range(len(LIMITS))}

    async def begin(self) -> None:
        """Let every worker be known, and every run be somebody's."""
        for worker in self.workers:
            await self.store.register(worker, lock=None)
        for number, new in enumerate(self.runs):
            created = await self.store.create(new, worker=self.workers[number % WORKERS])
            assert isinstance(created, Created)
            assert created.lease is not None
            self.leases[number] = created.lease

    async def play(self, op: Op) -> Any:
        """Do one thing and return what was answered."""
        verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "acquire": self.acquire, "free": self.free, "commit": self.commit, "void": self.void,
            "release": self.release, "claim": self.claim, "advance": self.advance,
        }  # fmt: skip
        return await verbs[op[0]](*op[1:])

    async def acquire(self, run: int, limit: int, priority: int) -> Any:
        """Ask under the last lease that was got, good or not."""
        lease = self.leases[run]
        turn = await self.store.acquire(lease, LIMITS[limit].name, LIMITS[limit].with_priority(priority))
        self.queued.pop((run, limit), None)
        if isinstance(turn, Queued):
            self.queued[run, limit] = priority
        elif isinstance(turn, Granted) and self.told.get((run, limit)) != lease.fence:
            self.told[run, limit] = lease.fence
            self.starts[limit].append(self.clock())
        return turn

    async def look(self) -> list[Any]:
        """Let everybody who waits ask again, so that each start is known when it happens."""
        return [await self.acquire(*waiting, priority) for waiting, priority in list(self.queued.items())]

    async def free(self, run: int, limit: int) -> Any:
        """Give back by the verb."""
        self.queued.pop((run, limit), None)
        self._forget(run, limit)
        await self.store.free(self.leases[run], LIMITS[limit].name)

    async def commit(self, run: int, limit: int) -> Any:
        """Give back by a commit, which only the holder of the lease can make."""
        lease = self.leases[run]
        row = await self.store.get(lease.row.run)
        assert row is not None
        pen = Pen(self.store, lease)
        pen.seq, pen.head = row.last_seq, row.head
        outcome = await self.store.commit(lease, pen.next("done", freed=[LIMITS[limit].name]))
        if (row.owner, row.fence) == (lease.worker, lease.fence):
            self._forget(run, limit)
        return type(outcome).__name__

    def _forget(self, run: int, limit: int) -> None:
        if self.told.get((run, limit)) == self.leases[run].fence:
            del self.told[run, limit]

    async def void(self, by: int) -> Any:
        """Declare a worker dead; it comes back under the same name, without its leases."""
        freed = await self.store.void(self.workers[by], why="test")
        await self.store.register(self.workers[by], lock=None)
        return freed

    async def release(self, by: int) -> Any:
        """Give up a worker's leases."""
        return await self.store.release(self.workers[by])

    async def claim(self, by: int) -> Any:
        """Claim whatever is due."""
        taken: list[int] = []
        for number, new in enumerate(self.runs):
            for lease in await self.store.claim(self.workers[by], SERVES, limit=1, runs=[new.row.run]):
                self.leases[number] = lease
                taken.append(number)
        return taken

    async def advance(self, millis: int) -> Any:
        """Let time pass."""
        self.clock.advance(millis / 1e3)

    async def held(self) -> list[int]:
        """Return, for each limit, how many live leases were told that they have a slot of it."""
        counts = [0] * len(LIMITS)
        for (run, limit), fence in self.told.items():
            row = await self.store.get(self.runs[run].row.run)
            assert row is not None
            counts[limit] += row.owner is not None and row.fence == fence
        return counts

    async def check(self) -> None:
        """See that no limit has more live holders than it may."""
        for limit, held in zip(LIMITS, await self.held(), strict=True):
            assert held <= (limit.at_once or RUNS), limit

    def check_starts(self) -> None:
        """See that no limit had more starts than it may, in any span of time."""
        for number, limit in enumerate(LIMITS):
            starts = self.starts[number]
            pairs = zip(starts, starts[limit.starts or len(starts) :], strict=False)
            assert all(later - first >= limit.span for first, later in pairs), limit

    async def let_everybody_through(self) -> None:
        """See that each live run which asks gets its turn, if holders give back and time passes."""
        wanted = {(run, limit) for run in range(RUNS) for limit in range(len(LIMITS))}
        for run, limit in wanted:
            await self.free(run, limit)
        for _ in range(RUNS * len(LIMITS)):
            for run, limit in sorted(wanted):
                if not isinstance(await self.acquire(run, limit, 0), Queued):
                    wanted.discard((run, limit))
            await self.check()
            for run, limit in itertools.product(range(RUNS), range(len(LIMITS))):
                if (run, limit) not in wanted:
                    await self.free(run, limit)
            await self.advance(10)
        assert not wanted


async def play(story: list[Op], eager: bool, opened: Opened) -> None:
    """Play a story on memory and on another store: both hold the limits, and answer alike."""
    clocks = MovingClock(1), MovingClock(1)
    async with opened(clocks[1]) as other:
        memory = MemoryStore(clock=clocks[0])
        runs = [a_run(memory, tenant="ab"[number % 2]) for number in range(RUNS)]
        workers = [new_worker_id() for _ in range(WORKERS)]
        crews = [Crew(memory, clocks[0], runs, workers), Crew(other, clocks[1], runs, workers)]
        for crew in crews:
            await crew.begin()
        for op in story:
            one, two = [await crew.play(op) for crew in crews]
            assert one == two, op
            if eager:
                one, two = [await crew.look() for crew in crews]
                assert one == two, op
                for crew in crews:
                    crew.check_starts()
            for crew in crews:
                await crew.check()
            if op[0] == "acquire":
                # Only now: what a commit frees may be handed on a moment later, but before the next one asks.
                one, two = [await stands(crew, op[2]) for crew in crews]
                assert one == two, op
        for crew in crews:
            for number in range(WORKERS):
                await crew.claim(number)
            await crew.let_everybody_through()


async def stands(crew: Crew, limit: int) -> list[LimitRow]:
    """Return how a limit stands; nothing if nobody asked for it yet."""
    return [row for row in await crew.store.limits() if row.name == LIMITS[limit].name]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ops, min_size=10, max_size=60), st.booleans())
def test_limits_hold_in_memory_and_on_sqlite_whatever_happens(story: list[Op], eager: bool) -> None:
    """No live holders beyond the limit, no starts beyond the rate, and everybody has its turn in the end."""
    asyncio.run(play(story, eager, in_a_file))


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow], phases=(Phase.explicit, Phase.generate))
@given(story=st.lists(ops, min_size=10, max_size=50), eager=st.booleans())
def test_limits_hold_on_postgresql_whatever_happens(
    postgres_admin: tuple[str, psycopg.Connection], story: list[Op], eager: bool
) -> None:
    """The same, where many machines share a database."""
    asyncio.run(play(story, eager, in_schemas_of(postgres_admin)))


together = st.lists(
    st.tuples(st.sampled_from(["acquire", "acquire", "commit", "free"]), run, st.integers(-1, 1)),
    min_size=2, max_size=RUNS, unique_by=lambda op: op[1],
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(together, st.tuples(st.just("void"), worker)), min_size=3, max_size=20))
def test_what_is_asked_and_given_back_in_one_transaction_neither_exceeds_a_limit_nor_leaves_a_slot_unused(
    story: list[Any],
) -> None:
    """Many share a commit, and what the first found out of a limit is not asked again by the others."""
    asyncio.run(play_together(story))


async def play_together(story: list[Any]) -> None:
    """Let runs ask for a limit of two slots and give back, several at one moment."""
    clock = MovingClock(1)
    async with in_a_file(clock) as store:
        runs = [a_run(store, tenant="ab"[number % 2]) for number in range(RUNS)]
        crew = Crew(store, clock, runs, [new_worker_id() for _ in range(WORKERS)])
        await crew.begin()
        bells = [store.watch(new.row.run, entries=False) for new in runs]
        for moment in story:
            if moment[0] == "void":
                await crew.void(moment[1])
                await crew.claim(moment[1])
            else:
                asked = [(verb, run, 0, *([priority] if verb == "acquire" else [])) for verb, run, priority in moment]
                await asyncio.gather(*(crew.play(op) for op in asked))
            await crew.check()
            await crew.look()
            await crew.check()
            for row in await store.limits():
                assert row.held == min(2, row.held + row.queued), "a slot is free, and somebody waits for it"
        for bell in bells:
            bell.close()
