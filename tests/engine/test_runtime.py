"""Opening, starting and waiting: the same from async code, from plain code, and from one call."""

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.errors import InvalidInput, Misuse, StoreRefused
from holdfast.store.memory import MemoryStore
from tests.engine.stage import Hurdle, Stage, kinds_of, soon

calls: list[str] = []


async def note(word: str) -> str:
    """Write down that it was called."""
    calls.append(word)
    return word.upper()


@hf.durable
async def shout(ctx: hf.Context, word: str) -> str:
    """Shout a word."""
    return await ctx.step(note, word)


@hf.durable(name="echo")
async def _echo(ctx: hf.Context, word: str, times: int = 1) -> str:
    """Shout a word several times."""
    return await ctx.step(note, word) * times


# The type checker wants every argument of a durable function, the ones with a default too.
echo: Any = _echo


@hf.durable
async def fail(ctx: hf.Context) -> None:
    """Fail."""
    raise ValueError("no luck")


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    """Begin with no calls."""
    calls.clear()


class TestRun:
    """`hf.run`: one call, one result; with a key, as often as it takes."""

    def test_it_returns_the_result(self, tmp_path: Path) -> None:
        """From plain code, without a word about stores or loops."""
        assert hf.run(_echo, "hey", 2, store=f"sqlite:///{tmp_path}/s.db") == "HEYHEY"

    def test_the_same_key_is_the_same_run(self, tmp_path: Path) -> None:
        """Called again, it returns what is there."""
        store = f"sqlite:///{tmp_path}/s.db"
        assert [hf.run(shout, "hey", key="k", store=store) for _ in range(3)] == ["HEY"] * 3
        assert calls == ["hey"]

    def test_the_same_key_for_something_else_is_a_conflict_that_names_it(self, tmp_path: Path) -> None:
        """A key never changes its meaning."""
        store = f"sqlite:///{tmp_path}/s.db"
        hf.run(shout, "hey", key="k", store=store)
        with pytest.raises(hf.Conflict, match="whose input differs") as conflict:
            hf.run(shout, "ho", key="k", store=store)
        assert conflict.value.differs == ("input",)
        with pytest.raises(hf.Conflict, match="name and input"):
            hf.run(fail, key="k", store=store)

    def test_a_failed_run_raises_with_its_reason(self, tmp_path: Path) -> None:
        """Status, reason and the error's type and text are data."""
        with pytest.raises(hf.RunError, match="ValueError: no luck") as failed:
            hf.run(fail, store=f"sqlite:///{tmp_path}/s.db")
        assert (failed.value.status, failed.value.reason) == ("failed", "ValueError: no luck")
        assert failed.value.error is not None
        assert failed.value.error["type"] == "ValueError"

    def test_it_drives_its_own_run_only(self, tmp_path: Path) -> None:
        """Other runs of the same code in the same store are somebody else's to drive."""
        store = f"sqlite:///{tmp_path}/s.db"

        async def leave_one() -> None:
            async with hf.open(store, work=False) as runtime:
                await runtime.start(shout, "left")

        asyncio.run(leave_one())
        assert hf.run(shout, "mine", store=store) == "MINE"
        assert calls == ["mine"]

    def test_the_address_comes_from_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`HOLDFAST_STORE`, else a file in the working directory."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{tmp_path}/named.db")
        hf.run(shout, "hey")
        monkeypatch.delenv("HOLDFAST_STORE")
        hf.run(shout, "hey")
        assert {"named.db", "holdfast.db"} <= {path.name for path in tmp_path.iterdir()}

    async def test_it_is_refused_inside_a_running_loop(self) -> None:
        """It would block the loop; the error says what to use."""
        with pytest.raises(Misuse, match=r"await runtime\.run"):
            hf.run(shout, "hey", store="memory://")

    def test_it_says_when_only_a_person_can_help(self, tmp_path: Path) -> None:
        """A run that rests for a person ends the call, not the run."""

        async def pay() -> str:
            raise ConnectionError("cut")

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            return await ctx.step(pay, effect="once", in_doubt="wait")

        with pytest.raises(hf.RunError, match="in doubt") as waiting:
            hf.run(tale, store=f"sqlite:///{tmp_path}/s.db")
        assert waiting.value.status == "waiting"

    def test_killed_and_called_again_it_repeats_nothing(self, tmp_path: Path) -> None:
        """The README's promise: kill it anywhere, run it again, same run."""
        program = tmp_path / "program.py"
        program.write_text(
            "import os, pathlib, sys\n"
            "import holdfast as hf\n"
            "log = pathlib.Path(sys.argv[1])\n"
            "def act(word):\n"
            "    with log.open('a') as file: file.write(word)\n"
            "@hf.durable\n"
            "async def tale(ctx: hf.Context) -> str:\n"
            "    for word in 'abc':\n"
            "        await ctx.step(act, word)\n"
            "        if len(log.read_text()) == int(sys.argv[3]): os.kill(os.getpid(), 9)\n"
            "    return 'done'\n"
            "if __name__ == '__main__':\n"
            "    print(hf.run(tale, key='k', store=sys.argv[2]))\n"
        )
        log, store = tmp_path / "log", f"sqlite:///{tmp_path}/s.db"
        ends = []
        for kill_at in ("1", "2", "never"):
            arguments = [str(log), store, kill_at if kill_at != "never" else "99"]
            done = subprocess.run(
                [sys.executable, str(program), *arguments], capture_output=True, text=True, timeout=60, check=False
            )
            ends.append((done.returncode, done.stdout.strip()))
        assert ends == [(-9, ""), (-9, ""), (0, "done")]
        assert log.read_text() == "abc"


class TestPlain:
    """A plain `with` gives synchronous callers the same runtime."""

    def test_it_starts_waits_and_iterates(self, tmp_path: Path) -> None:
        """`rt.wait` for anything awaitable, `rt.iterate` for any stream."""
        with hf.open(f"sqlite:///{tmp_path}/s.db", hf.App(shout)) as runtime:
            run = runtime.wait(runtime.start(shout, "hey", key=("a", 1)))
            assert runtime.wait(run.result(timeout=20)) == "HEY"
            kinds = [event.type for event in runtime.iterate(run.events())]
            assert kinds == ["RunStarted", "StepCompleted", "RunFinished"]
            assert runtime.wait(runtime.get(key="a/1")).id == run.id

    def test_an_error_inside_closes_it(self, tmp_path: Path) -> None:
        """Whoever leaves by an exception leaves nothing running."""
        store = f"sqlite:///{tmp_path}/s.db"

        def leave() -> None:
            with hf.open(store, hf.App(shout)) as runtime:
                runtime.wait(runtime.start(shout, "hey"))
                raise LookupError

        with pytest.raises(LookupError):
            leave()
        with hf.open(store, work=False) as runtime:
            assert runtime.wait(runtime.client.workers()) == []

    async def test_a_plain_with_in_a_running_loop_is_refused_before_anything_is_opened(self, tmp_path: Path) -> None:
        """It would block the loop; what is awaited inside it would belong to another one."""
        for opened in (hf.open(f"sqlite:///{tmp_path}/no.db"), hf.testing.open(store=f"sqlite:///{tmp_path}/no.db")):
            with pytest.raises(Misuse, match=r"async with hf\.open"), opened:
                raise AssertionError("it was opened")
        assert list(tmp_path.iterdir()) == []

    async def test_wait_and_iterate_are_for_plain_code(self) -> None:
        """In async code there is `await`."""
        async with hf.open("memory://") as runtime:
            waiting = asyncio.get_running_loop().create_future()
            with pytest.raises(Misuse, match="use await"):
                runtime.wait(waiting)
            with pytest.raises(Misuse, match="async for"):
                next(runtime.iterate(_none()))


async def _none() -> Any:
    return
    yield


class TestOpening:
    """A store is opened by address or handed over, and closed with the runtime."""

    async def test_it_can_be_awaited(self) -> None:
        """For those whose life does not fit a block."""
        runtime = await hf.open("memory://", hf.App(shout))
        assert await soon(runtime.run(shout, "hey")) == "HEY"
        await runtime.close()

    async def test_it_takes_a_store_that_is_open(self) -> None:
        """A store object is used as it is."""
        store = MemoryStore()
        async with hf.open(store) as runtime:
            run = await runtime.start(shout, "hey")
            assert await run.result(timeout=20) == "HEY"
        assert await store.get(run.id) is not None

    @pytest.mark.parametrize("address", ["", "holdfast.db", "sqlite://", "sqlite:///", "mysql://x", "sqlite:/x"])
    async def test_an_address_that_names_no_store_is_refused_with_one_that_does(
        self, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The error shows the right form."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOLDFAST_STORE", "nonsense")
        with pytest.raises(StoreRefused, match="sqlite:///"):
            async with hf.open(address):
                raise AssertionError("it opened")

    async def test_without_work_nothing_is_driven(self, stage: Stage) -> None:
        """A process may start and watch runs that others drive."""
        async with stage.open(shout, work=False) as runtime:
            run = await runtime.start(shout, "hey")
            assert (await run.info()).status is hf.Status.QUEUED
            with pytest.raises(TimeoutError, match="it goes on"):
                await run.result(timeout=0.05)
        assert calls == []

    @pytest.mark.parametrize("concurrency", [0, -1])
    def test_room_for_nobody_is_refused(self, concurrency: int) -> None:
        """A worker that can drive nothing is a mistake."""
        with pytest.raises(InvalidInput, match="at least 1"):
            hf.open("memory://", concurrency=concurrency)  # type: ignore[unused-awaitable]

    async def test_it_resumes_at_once_what_it_can_drive(self, stage: Stage) -> None:
        """Opening is enough: nobody has to ask for the runs that were left."""
        async with stage.open(work=False) as runtime:
            runs = [await runtime.start(shout, word) for word in ("a", "b", "c")]
        async with stage.open(shout) as runtime:
            results = [await (await runtime.get(run.id)).result(timeout=20) for run in runs]
        assert results == ["A", "B", "C"]

    async def test_what_start_is_given_is_driven_too(self, stage: Stage) -> None:
        """A function need not be in the app beforehand."""
        async with stage.open() as runtime:
            assert await soon(runtime.run(shout, "hey")) == "HEY"


class TestStarting:
    """A run is found again by id or key, and says where it stands."""

    async def test_a_tuple_key_finds_its_run(self, stage: Stage) -> None:
        """Parts are joined without ambiguity."""
        async with stage.open(shout) as runtime:
            run = await runtime.start(shout, "hey", key=("order", "a/b", 42))
            assert (await runtime.get(key=("order", "a/b", 42))).id == run.id
            assert (await runtime.get(key="order/a%2Fb/42")).id == run.id
            with pytest.raises(hf.NotFound):
                await runtime.get(key=("order", "a", "b", 42))

    async def test_many_starts_at_once_with_one_key_are_one_run(self, stage: Stage) -> None:
        """However impatient the caller, the work is done once."""
        async with stage.open(shout) as runtime:
            runs = await soon(asyncio.gather(*(runtime.start(shout, "hey", key="k") for _ in range(20))))
            assert len({run.id for run in runs}) == 1
            assert await runs[0].result(timeout=20) == "HEY"
        assert calls == ["hey"]

    async def test_a_default_is_not_part_of_the_input(self, stage: Stage) -> None:
        """The input is what was given: a default that changes later does not change what a key stands for."""
        async with stage.open(echo) as runtime:
            run = await runtime.start(echo, "hey", key="k")
            assert (await run.info()).input == {"word": "hey"}
            assert await run.result(timeout=20) == "HEY"
            with pytest.raises(hf.Conflict):
                await runtime.start(echo, "hey", 1, key="k")

    @pytest.mark.parametrize("arguments", [(), ("a", 1, 2), (1,), ("a", "b"), (object(),)])
    async def test_wrong_arguments_are_refused_before_anything_is_written(
        self, stage: Stage, arguments: tuple[Any, ...]
    ) -> None:
        """Too few, too many, of the wrong type, or no data at all."""
        async with stage.open(echo) as runtime:
            with pytest.raises(InvalidInput):
                await runtime.start(echo, *arguments, key="k")
            assert await runtime.runs() == []

    async def test_a_run_tells_all_about_itself(self, stage: Stage) -> None:
        """Name, key, labels, input, result and when."""
        async with stage.open(shout) as runtime:
            run = await runtime.start(shout, "hey", key="k", labels={"team": "blue"})
            await run.result(timeout=20)
            info = await run.info()
        assert (info.id, info.name, info.key, info.labels) == (run.id, "shout", "k", {"team": "blue"})
        assert (info.status, info.input, info.result, info.error) == ("completed", {"word": "hey"}, "HEY", None)
        assert (info.attempt, info.last_seq, info.root, info.parent) == (1, 3, run.id, None)
        assert info.created_at.timestamp() * 1e6 == stage.clock()

    async def test_runs_are_listed_newest_first_in_pages(self, stage: Stage) -> None:
        """By status, name and labels; a page begins where the one before ended."""
        async with stage.open(shout, fail) as runtime:
            ids = []
            for n in range(5):
                run = await runtime.start(shout, str(n), labels={"odd": str(n % 2)})
                await run.result(timeout=20)
                ids.append(run.id)
            failing = await runtime.start(fail)
            with pytest.raises(hf.RunError):
                await failing.result(timeout=20)
            first = await runtime.runs(name="shout", limit=3)
            rest = await runtime.runs(name="shout", limit=3, before=first[-1].id)
            assert [run.id for run in (*first, *rest)] == ids[::-1]
            assert [run.id for run in await runtime.runs(status="failed")] == [failing.id]
            assert [run.id for run in await runtime.runs(labels={"odd": "1"})] == [ids[3], ids[1]]
            with pytest.raises(InvalidInput):
                await runtime.runs(limit=0)

    async def test_a_handle_is_got_by_id_or_key_and_not_by_both(self, stage: Stage) -> None:
        """A wrong id is not looked up, an unknown one is not found."""
        async with stage.open() as runtime:
            with pytest.raises(InvalidInput):
                await runtime.get()
            with pytest.raises(InvalidInput):
                await runtime.get("x", key="k")
            with pytest.raises(InvalidInput, match="not a run id"):
                await runtime.get("x")
            with pytest.raises(hf.NotFound):
                await runtime.get("0192f0c1-2b3c-7d4e-8f50-617283940a1b")

    async def test_waiting_too_briefly_leaves_the_run_alone(self, stage: Stage) -> None:
        """A timeout of the caller is no cancel; durations are seconds or timedeltas."""
        hurdle = Hurdle()

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            await ctx.step(hurdle)
            return "done"

        async with stage.open(tale) as runtime:
            run = await runtime.start(tale)
            await soon(hurdle.reached.wait())
            for brief in (0.01, timedelta(milliseconds=10)):
                with pytest.raises(TimeoutError, match="it goes on"):
                    await run.result(timeout=brief)
            hurdle.open.set()
            assert await run.result(timeout=20) == "done"
            assert await kinds_of(run) == ["RunStarted", "StepCompleted", "RunFinished"]

    async def test_a_result_without_its_function_is_plain_data(self, stage: Stage) -> None:
        """`of=` gives it its type."""

        @hf.durable
        async def pair(ctx: hf.Context) -> tuple[int, int]:
            return (1, 2)

        async with stage.open(pair) as runtime:
            run = await runtime.start(pair)
            assert await run.result(timeout=20) == (1, 2)
            assert await (await runtime.get(run.id)).result() == [1, 2]
            assert await (await runtime.get(run.id, of=pair)).result() == (1, 2)

    async def test_a_watcher_sees_the_ending_as_an_event(self, stage: Stage) -> None:
        """The last event of a failed run says how it failed."""
        async with stage.open(fail) as runtime:
            run = await runtime.start(fail)
            async with asyncio.timeout(20):
                last = [event async for event in run.events()][-1]
        assert isinstance(last, events.RunFinished)
        assert last.error is not None
        assert (last.status, last.error.type, last.error.message) == ("failed", "ValueError", "no luck")


async def test_a_beginning_that_no_id_has_is_refused_with_how_much_to_give(stage: Stage) -> None:
    """Thirteen characters are a millisecond; fewer are soon shared."""
    async with stage.open() as runtime:
        with pytest.raises(InvalidInput, match=r"'01a1' is not a run id, .*: its first 13 characters"):
            await runtime.client.match("01a1")
