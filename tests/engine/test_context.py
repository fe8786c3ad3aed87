"""What a durable function and its steps are given, and what they may not do with it."""

import asyncio
import contextvars
import functools
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import structlog
from structlog.testing import capture_logs

import holdfast as hf
from holdfast import events
from holdfast.core.errors import InvalidInput, Misuse
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, soon


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Capturing logs configures structlog for good, and whoever did that gets our lines his way."""
    yield
    structlog.reset_defaults()


async def nothing() -> None:
    """A step that does nothing."""


class TestStep:
    """A step that asks for it is told who it is."""

    async def test_it_knows_its_run_its_attempt_and_its_dependencies(self, stage: Stage) -> None:
        """What a step needs of its surroundings comes by its first parameter, not through globals."""
        told: list[tuple[Any, ...]] = []

        async def ask(step: hf.Step[dict[str, int]], word: str) -> None:
            told.append((step.run_id, step.attempt, step.deps, word))
            assert step.idempotency_key.startswith("hf_")
            if step.attempt == 1:
                raise ConnectionError

        @hf.durable
        async def tale(ctx: hf.Context) -> None:
            await ctx.step(ask, "word", retry=hf.Retry(first=0.0))

        deps = {"pool": 7}
        async with stage.open(tale, deps=lambda: deps) as runtime:
            run = await runtime.start(tale)
            await run.result(timeout=20)
        assert told == [(run.id, 1, deps, "word"), (run.id, 2, deps, "word")]
        assert all(entry[2] is deps for entry in told)

    async def test_its_log_names_run_step_and_attempt(self, stage: Stage) -> None:
        """Every line can be found again by its run."""

        async def talk(step: hf.Step[None]) -> None:
            step.log.info("talking", loud=True)

        @hf.durable
        async def tale(ctx: hf.Context) -> None:
            await ctx.step(talk)

        with capture_logs() as lines:
            async with stage.open(tale) as runtime:
                run = await runtime.start(tale)
                await run.result(timeout=20)
        (line,) = [line for line in lines if line["event"] == "talking"]
        assert (line["run"], line["step"], line["attempt"], line["loud"]) == (run.id, "0/talk#1", 1, True)


class Pool:
    """A dependency that must be closed."""

    def __init__(self) -> None:
        self.life: list[str] = []

    def made(self) -> "Pool":
        """A plain factory."""
        self.life.append("made")
        return self

    async def made_later(self) -> "Pool":
        """An async factory."""
        return self.made()

    @contextmanager
    def held(self) -> Iterator["Pool"]:
        """A context manager."""
        yield self.made()
        self.life.append("closed")

    @asynccontextmanager
    async def held_later(self) -> AsyncIterator["Pool"]:
        """An async context manager."""
        yield self.made()
        self.life.append("closed")


@pytest.mark.parametrize(
    ("how", "life"),
    [
        ("made", ["made", "used", "used"]),
        ("made_later", ["made", "used", "used"]),
        ("held", ["made", "used", "used", "closed"]),
        ("held_later", ["made", "used", "used", "closed"]),
    ],
)
async def test_dependencies_are_built_once_and_closed_with_the_runtime(stage: Stage, how: str, life: list[str]) -> None:
    """Value, coroutine or context manager of either kind: one per opening, closed after the last step."""
    pool = Pool()

    async def use(step: hf.Step[Pool]) -> None:
        step.deps.life.append("used")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(use)

    async with stage.open(tale, deps=getattr(pool, how)) as runtime:
        await soon(runtime.run(tale))
        await soon(runtime.run(tale))
    assert pool.life == life


async def test_dependencies_that_cannot_be_built_end_the_opening(stage: Stage) -> None:
    """The caller is told, and nothing stays open or claimed."""

    def broken() -> None:
        raise LookupError("no database")

    with pytest.raises(LookupError, match="no database"):
        async with stage.open(deps=broken):
            raise AssertionError("it opened")
    async with stage.open(work=False) as runtime:
        assert await runtime.client.workers() == []


class TestPlainFunctions:
    """A plain function is welcome as a step and gets a thread."""

    async def test_it_runs_beside_the_event_loop(self, stage: Stage) -> None:
        """Two of them can wait for each other, so neither blocks the other's run."""
        barrier = threading.Barrier(2, timeout=20)
        threads: list[int] = []

        def meet() -> str:
            threads.append(threading.get_ident())
            barrier.wait()
            return "met"

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            return await ctx.step(meet)

        async with stage.open(tale) as runtime:
            assert set(await soon(asyncio.gather(runtime.run(tale), runtime.run(tale)))) == {"met"}
        assert threading.get_ident() not in threads

    async def test_its_error_is_the_steps(self, stage: Stage) -> None:
        """Whatever a thread raises arrives, even what a future cannot carry."""

        def stop() -> None:
            raise StopIteration("no more")

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            try:
                await ctx.step(stop)
            except hf.StepError as error:
                return error.message
            return "never"

        async with stage.open(tale) as runtime:
            assert "no more" in await soon(runtime.run(tale))

    async def test_it_sees_the_context_variables_of_its_caller(self, stage: Stage) -> None:
        """Tracing and the like work across the thread."""
        variable = contextvars.ContextVar("variable", default="unset")

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            variable.set("set by the run")
            return await ctx.step(variable.get)

        async with stage.open(tale) as runtime:
            assert await soon(runtime.run(tale)) == "set by the run"

    async def test_what_it_returns_is_awaited(self, stage: Stage) -> None:
        """A plain function that returns a coroutine is an async one."""

        async def later(word: str) -> str:
            return word.upper()

        def now(word: str) -> Any:
            return later(word)

        @hf.durable
        async def tale(ctx: hf.Context) -> list[str]:
            return [await ctx.step(now, "a"), await ctx.step(lambda: later("b"), key="b")]

        async with stage.open(tale) as runtime:
            assert await soon(runtime.run(tale)) == ["A", "B"]


async def test_keywords_go_through_partial(stage: Stage) -> None:
    """Positional arguments are the function's, keywords are Holdfast's; `partial` carries the rest, and is digested."""

    def greet(word: str, *, name: str, mark: str = "!") -> str:
        return f"{word} {name}{mark}"

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        once = functools.partial(greet, name="Ann")
        return [
            await ctx.step(once, "Hello"),
            await ctx.step(functools.partial(functools.partial(once, "Bye"), mark=".")),
            await ctx.step(functools.partial(greet, "Ho", name="Bob"), name="other"),
        ]

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == ["Hello Ann!", "Bye Ann.", "Ho Bob!"]
        steps = [entry for entry in await entries_of(run) if isinstance(entry, events.StepCompleted)]
    assert [entry.step for entry in steps] == ["0/greet#1", "0/greet#2", "0/other#1"]
    assert len({entry.digest for entry in steps}) == 3


@pytest.mark.parametrize("options", [{}, {"key": ""}, {"name": ""}])
async def test_a_lambda_needs_a_key(stage: Stage, options: Any) -> None:
    """It has no name that stays when the code moves."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        step: Any = ctx.step
        return int(await step(lambda: 1, **options))

    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match="InvalidInput"):
            await soon(runtime.run(tale))


async def test_a_step_key_may_be_used_once(stage: Stage) -> None:
    """An explicit key names one step of a run."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(nothing, key="k")
        await ctx.step(nothing, key="k")

    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match="was used before"):
            await soon(runtime.run(tale))


async def test_a_client_among_the_arguments_is_refused_with_where_it_belongs(stage: Stage) -> None:
    """A pool or a client is not data: the step is not performed, and the error says what to do."""
    performed: list[str] = []

    def use(client: socket.socket) -> None:
        performed.append("used")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        with socket.socket() as client:
            await ctx.step(use, client)

    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match=r"the input of step 0/use#1: a socket\.socket is not data"):
            await soon(runtime.run(tale))
    assert performed == []


class TestSameAfterResume:
    """Time, chance and ids are the run's, not the moment's."""

    async def test_now_random_and_uuid_are_the_same_on_every_replay(self, stage: Stage) -> None:
        """What the code decided by them, it decides again."""
        drawn: list[tuple[datetime, datetime, float, int, UUID, UUID]] = []
        hurdle = Hurdle()

        @hf.durable
        async def tale(ctx: hf.Context) -> int:
            first = ctx.now()
            await ctx.step(nothing)
            values = (first, ctx.now(), ctx.random.random(), ctx.random.randrange(10**9), ctx.uuid(), ctx.uuid())
            drawn.append(values)
            await ctx.step(nothing)
            await ctx.step(hurdle)
            return len(drawn)

        began = stage.clock()
        for _ in range(3):
            hurdle.reached.clear()
            async with stage.open(tale) as runtime:
                await runtime.start(tale, key="k")
                await soon(hurdle.reached.wait())
            stage.clock.advance(1000)
        assert drawn[0] == drawn[1] == drawn[2]
        first, second, _, _, one, other = drawn[0]
        assert first == second == datetime.fromtimestamp(began / 1e6, UTC)
        assert one != other

    async def test_a_time_taken_but_never_followed_is_taken_anew(self, stage: Stage) -> None:
        """It is recorded with the next entry: without one, nothing was decided by it."""
        taken: list[datetime] = []
        hurdle = Hurdle()

        @hf.durable
        async def tale(ctx: hf.Context) -> None:
            taken.append(ctx.now())
            await ctx.step(hurdle)

        async with stage.open(tale) as runtime:
            await runtime.start(tale, key="k")
            await soon(hurdle.reached.wait())
        stage.clock.advance(5)
        hurdle.open.set()
        async with stage.open(tale) as runtime:
            await (await runtime.start(tale, key="k")).result(timeout=20)
        assert (taken[1] - taken[0]).total_seconds() == 5

    async def test_two_runs_draw_differently(self, stage: Stage) -> None:
        """Chance and ids are derived from the run's own seed."""

        @hf.durable
        async def tale(ctx: hf.Context) -> tuple[float, str]:
            return ctx.random.random(), str(ctx.uuid())

        async with stage.open(tale) as runtime:
            one, other = await soon(runtime.run(tale)), await soon(runtime.run(tale))
        assert one[0] != other[0]
        assert one[1] != other[1]

    async def test_the_log_is_silent_on_replay(self, stage: Stage) -> None:
        """What was logged when it happened is not logged again."""
        hurdle = Hurdle()

        @hf.durable
        async def tale(ctx: hf.Context) -> None:
            ctx.log.info("before")
            await ctx.step(nothing)
            ctx.log.info("between")
            await ctx.step(nothing)
            await ctx.step(hurdle)
            ctx.log.bind(more=1).info("after")

        with capture_logs() as lines:
            async with stage.open(tale) as runtime:
                run = await runtime.start(tale, key="k")
                await soon(hurdle.reached.wait())
            hurdle.open.set()
            async with stage.open(tale) as runtime:
                await (await runtime.start(tale, key="k")).result(timeout=20)
        told = [line for line in lines if line["event"] in ("before", "between", "after")]
        assert [line["event"] for line in told] == ["before", "between", "after"]
        assert {line["run"] for line in told} == {run.id}
        assert told[-1]["more"] == 1

    async def test_a_line_that_names_its_run_itself_is_logged(self, stage: Stage) -> None:
        """What a logger is bound to may be said again: a line in a log must not end a run."""

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            ctx.log.info("mine", run="another")
            ctx.log.bind(run="a third").info("bound")
            return "done"

        with capture_logs() as lines:
            async with stage.open(tale) as runtime:
                assert await soon(runtime.run(tale)) == "done"
        assert {line["event"]: line["run"] for line in lines} == {"mine": "another", "bound": "a third"}

    async def test_what_is_emitted_is_emitted_once(self, stage: Stage) -> None:
        """Whoever watches is told once, however often the run is resumed."""
        hurdle = Hurdle()

        @hf.durable
        async def tale(ctx: hf.Context) -> None:
            await ctx.emit({"percent": 10})
            await ctx.emit("named", name="progress")
            await ctx.step(hurdle)
            await ctx.emit({"percent": 100})

        async with stage.open(tale) as runtime:
            await runtime.start(tale, key="k")
            await soon(hurdle.reached.wait())
        hurdle.open.set()
        async with stage.open(tale) as runtime:
            run = await runtime.start(tale, key="k")
            await run.result(timeout=20)
            emitted = [entry for entry in await entries_of(run) if isinstance(entry, events.Emitted)]
        assert [(entry.name, entry.value) for entry in emitted] == [
            ("emit", {"percent": 10}),
            ("progress", "named"),
            ("emit", {"percent": 100}),
        ]


class TestMisuse:
    """A verb called where its order would differ on replay is an error that says so."""

    @pytest.mark.parametrize("verb", ["step", "emit", "now", "uuid"])
    async def test_a_verb_from_another_task_is_refused(self, stage: Stage, verb: str) -> None:
        """A task that the context did not start has no place in the run's order."""
        performed: list[str] = []

        async def act() -> None:
            performed.append("acted")

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            verbs: dict[str, Callable[[], Any]] = {
                "step": lambda: ctx.step(act),
                "emit": lambda: ctx.emit(1),
                "now": ctx.now,
                "uuid": ctx.uuid,
            }

            async def elsewhere() -> None:
                called = verbs[verb]()
                if asyncio.iscoroutine(called):
                    await called

            try:
                await asyncio.create_task(elsewhere())
            except Misuse as error:
                return str(error)
            return "allowed"

        async with stage.open(tale) as runtime:
            assert "another task than the run's own" in await soon(runtime.run(tale))
        assert performed == []

    async def test_gathered_steps_are_refused(self, stage: Stage) -> None:
        """`asyncio.gather` would finish in an order of its own."""

        @hf.durable
        async def tale(ctx: hf.Context) -> None:
            await asyncio.gather(ctx.step(nothing), ctx.step(nothing))

        async with stage.open(tale) as runtime:
            run = await runtime.start(tale)
            with pytest.raises(hf.RunError, match="Misuse"):
                await run.result(timeout=20)
            assert "StepCompleted" not in await kinds_of(run)

    async def test_a_step_inside_a_step_is_refused(self, stage: Stage) -> None:
        """Steps of one branch may not overlap."""

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            async def outer() -> None:
                await ctx.step(nothing)

            try:
                await ctx.step(outer)
            except hf.StepError as error:
                return error.message
            return "allowed"

        async with stage.open(tale) as runtime:
            assert "a step cannot call the context" in await soon(runtime.run(tale))

    async def test_a_context_kept_for_later_is_refused(self, stage: Stage) -> None:
        """Once its run has ended, a context does nothing more."""
        kept: list[hf.Context] = []

        @hf.durable
        async def tale(ctx: hf.Context) -> None:
            kept.append(ctx)

        async with stage.open(tale) as runtime:
            run = await runtime.start(tale)
            await run.result(timeout=20)
            with pytest.raises(Misuse):
                await kept[0].step(nothing)
            assert await kinds_of(run) == ["RunStarted", "RunFinished"]


class TestDeclaration:
    """A durable function is looked at when it is declared."""

    def test_it_must_be_async_with_a_context_and_named_parameters(self) -> None:
        """What cannot work is refused at import."""
        with pytest.raises(InvalidInput, match="async def"):
            hf.durable(lambda ctx: None)  # type: ignore[arg-type, return-value]

        async def without() -> None: ...

        async def stars(ctx: hf.Context, *words: str) -> None: ...

        async def double(ctx: hf.Context, **words: str) -> None: ...

        async def positional(ctx: hf.Context, word: str, /) -> None: ...

        for wrong in (without, stars, double, positional):
            with pytest.raises(InvalidInput):
                hf.durable(wrong)  # type: ignore[arg-type]

    def test_two_functions_of_one_name_are_refused(self) -> None:
        """Names are unique per app, since rows find their code by them."""

        @hf.durable
        async def tale(ctx: hf.Context) -> None: ...

        @hf.durable(name="tale")
        async def other(ctx: hf.Context) -> None: ...

        with pytest.raises(InvalidInput, match="two functions are called 'tale'"):
            hf.App(tale, other)
        hf.App(tale, tale)

    async def test_it_can_still_be_called_as_the_function_it_is(self) -> None:
        """A unit test needs no store."""

        @hf.durable
        async def double(ctx: Any, number: int) -> int:
            return 2 * number

        nobody: Any = None
        assert await double(nobody, 4) == 8
        assert double.__wrapped__.__name__ == double.name == "double"  # type: ignore[attr-defined]
