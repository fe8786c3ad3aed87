"""Effects follow their declared policy: `repeat` may run again, `keyed` with the same key, `once` never by itself."""

import asyncio

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core import limits
from holdfast.core.status import NotDone
from holdfast.engine.function import Durable
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, soon


class Bank:
    """The outside world: remembers every request it got."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, int]] = []
        self.hurdle = Hurdle()
        self.fails: Exception | None = None
        self.stops = True

    async def pay(self, step: hf.Step[None], cents: int) -> str:
        """Take a request; then fail, or wait, or answer."""
        self.requests.append((step.idempotency_key, step.attempt))
        if self.fails is not None:
            raise self.fails
        if self.stops:
            await self.hurdle()
        return f"paid {cents}"

    @property
    def keys(self) -> set[str]:
        """Every idempotency key that was sent."""
        return {key for key, _ in self.requests}


@pytest.fixture
def bank() -> Bank:
    """A bank that does not answer until it is let."""
    return Bank()


async def interrupted(stage: Stage, tale: Durable[str, []], bank: Bank) -> str:
    """Start a run, let its worker die while the bank holds the request, and return the run's id."""
    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, key="k")
        await soon(bank.hurdle.reached.wait())
    bank.stops = False
    return run.id


async def test_a_keyed_step_sends_the_same_key_on_every_attempt(stage: Stage, bank: Bank) -> None:
    """Whoever asks, and after whatever crash: the receiver can recognise the request."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(bank.pay, 5, effect="keyed", retry=hf.Retry(attempts=3, first=0.0))

    await interrupted(stage, tale, bank)
    bank.fails = ConnectionError("down")
    async with stage.open(tale) as runtime:
        run = await runtime.get(key="k")
        with pytest.raises(hf.RunError, match="ConnectionError: down"):
            await run.result(timeout=20)
    assert [attempt for _, attempt in bank.requests] == [1, 2, 3]
    assert len(bank.keys) == 1


async def test_every_step_and_every_run_has_its_own_key(stage: Stage, bank: Bank) -> None:
    """Two payments are two payments."""
    bank.stops = False

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(bank.pay, 5, effect="keyed")
        await ctx.step(bank.pay, 5, effect="keyed")
        return await ctx.step(bank.pay, 5, effect="keyed", key="third")

    async with stage.open(tale) as runtime:
        await soon(runtime.run(tale))
        await soon(runtime.run(tale))
    assert len(bank.keys) == len(bank.requests) == 6


@pytest.mark.parametrize(("effect", "intents"), [("repeat", 0), ("keyed", 1), ("once", 1)])
async def test_an_intent_is_on_disk_before_the_effect(stage: Stage, effect: hf.Effect, intents: int) -> None:
    """What might not be run again is announced first; what may be, is not."""
    found: list[int] = []

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        async def act() -> None:
            async with stage.open(work=False) as other:
                kinds = await kinds_of(await other.get(ctx.run_id))
            found.append(kinds.count("StepStarted"))

        await ctx.step(act, effect=effect)

    async with stage.open(tale) as runtime:
        await soon(runtime.run(tale))
    assert found == [intents]


async def test_a_repeat_step_cut_by_a_crash_is_run_again(stage: Stage, bank: Bank) -> None:
    """The default for plain code: safe to run again, so it is."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(bank.pay, 5)

    await interrupted(stage, tale, bank)
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(key="k")).result(timeout=20) == "paid 5"
    assert len(bank.requests) == 2


async def test_a_once_step_cut_by_a_crash_is_in_doubt_and_never_sent_again(stage: Stage, bank: Bank) -> None:
    """Nobody knows whether it happened: the code is told so, live and on every later replay, in the same words."""
    doubts: list[str] = []
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(bank.pay, 5, effect="once", retry=hf.Retry(attempts=5, first=0.0))
        except hf.InDoubt as doubt:
            doubts.append(f"{doubt} ({doubt.step}, {doubt.attempts}, {doubt.type})")
        await ctx.step(hurdle)
        return "went on"

    run_id = await interrupted(stage, tale, bank)
    for _ in range(3):
        hurdle.reached.clear()
        async with stage.open(tale) as runtime:
            await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        run = await runtime.get(run_id)
        assert await run.result(timeout=20) == "went on"
        kinds = await kinds_of(run)
    assert len(bank.requests) == 1
    died = "the process died before the outcome was recorded"
    assert set(doubts) == {f"step 0/pay#1 may or may not have happened: {died} (0/pay#1, 1, InDoubt)"}
    assert len(doubts) == 4
    assert (kinds.count("StepDoubted"), kinds.count("StepResolved"), kinds.count("StepStarted")) == (1, 1, 1)


@pytest.mark.parametrize(
    ("error", "timeout", "why"),
    [
        (ConnectionError("reset"), None, "ConnectionError: reset"),
        (KeyError("x"), None, "KeyError: 'x'"),
        (asyncio.CancelledError("by a library"), None, "CancelledError: by a library"),
        (None, 0.01, "TimeoutError: no result within 0.01 s"),
    ],
    ids=["connection", "bug", "cancelled inside", "timeout"],
)
async def test_any_error_of_a_once_step_is_doubt_and_not_failure(
    stage: Stage, bank: Bank, error: BaseException | None, timeout: float | None, why: str
) -> None:
    """An exception proves nothing about the outside world: no retry, whatever was declared."""
    bank.fails = error  # type: ignore[assignment]

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            return await ctx.step(bank.pay, 5, effect="once", timeout=timeout, retry=hf.Retry(first=0.0))
        except hf.InDoubt as doubt:
            return str(doubt)

    async with stage.open(tale) as runtime:
        assert await soon(runtime.run(tale)) == f"step 0/pay#1 may or may not have happened: {why}"
    assert len(bank.requests) == 1


async def test_an_error_declared_as_not_performed_is_a_failure_and_may_be_retried(stage: Stage, bank: Bank) -> None:
    """A refusal before anything happened is no doubt; another attempt is allowed, and sends the same key."""
    bank.fails = ConnectionRefusedError("closed")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(
            bank.pay, 5, effect="once", not_performed=(ConnectionRefusedError,), retry=hf.Retry(attempts=3, first=0.0)
        )

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        with pytest.raises(hf.RunError, match="ConnectionRefusedError: closed"):
            await run.result(timeout=20)
        assert "StepDoubted" not in await kinds_of(run)
    assert [attempt for _, attempt in bank.requests] == [1, 2, 3]
    assert len(bank.keys) == 1


async def test_a_policy_beside_the_function_counts_and_the_call_takes_precedence(stage: Stage) -> None:
    """`@hf.step` declares, `ctx.step` may still say otherwise."""
    calls: list[str] = []

    @hf.step(effect="once", name="charge", not_performed=[LookupError], retry=hf.Retry(attempts=2, first=0.0))
    async def act() -> None:
        calls.append("act")
        raise LookupError("no")

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        caught = []
        for options in ({}, {"effect": "repeat"}, {"not_performed": (KeyError,), "name": "other"}):
            try:
                await ctx.step(act, **options)
            except hf.StepError as error:
                caught.append(f"{type(error).__name__} {error.step} {error.attempts}")
        return caught

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == [
            "StepError 0/charge#1 2",
            "StepError 0/charge#2 2",
            # A KeyError is a LookupError, but a LookupError is not a KeyError.
            "InDoubt 0/other#1 1",
        ]
        started = [entry for entry in await entries_of(run) if isinstance(entry, events.StepStarted)]
    assert [(entry.step, entry.attempt) for entry in started] == [
        ("0/charge#1", 1),
        ("0/charge#1", 2),
        ("0/other#1", 1),
    ]
    assert len(calls) == 5


class TestVerify:
    """A doubt is resolved by looking: a value, not done, or still unknown."""

    async def test_a_value_that_verify_finds_is_the_steps_result(self, stage: Stage, bank: Bank) -> None:
        """What is known to have happened is recorded, and never asked for again."""
        asked: list[int] = []

        async def look(cents: int) -> str:
            asked.append(cents)
            return "found 5"

        hurdle = Hurdle()

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            paid = await ctx.step(bank.pay, 5, effect="once", verify=look)
            await ctx.step(hurdle)
            return paid

        run_id = await interrupted(stage, tale, bank)
        async with stage.open(tale):
            await soon(hurdle.reached.wait())
        hurdle.open.set()
        async with stage.open(tale) as runtime:
            run = await runtime.get(run_id)
            assert await run.result(timeout=20) == "found 5"
            (resolved,) = [entry for entry in await entries_of(run) if isinstance(entry, events.StepResolved)]
        assert (resolved.how, resolved.outcome, resolved.value) == ("verify", "done", "found 5")
        assert asked == [5]
        assert len(bank.requests) == 1

    @pytest.mark.parametrize("timeout", [None, 30.0], ids=["no timeout", "a timeout"])
    async def test_not_done_is_believed_only_when_no_request_can_still_act(
        self, stage: Stage, bank: Bank, timeout: float | None
    ) -> None:
        """A request may be in flight after its sender died: before its time has passed, NOT_DONE counts as unknown."""
        window = timeout or limits.IN_FLIGHT_SECONDS
        looks: list[int] = []

        def look(cents: int) -> NotDone:
            looks.append(stage.clock())
            return hf.NOT_DONE

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            return await ctx.step(bank.pay, 5, effect="once", verify=look, timeout=timeout)

        began = stage.clock()
        run_id = await interrupted(stage, tale, bank)
        stage.clock.advance(window - 1)
        async with stage.open(tale) as runtime:
            run = await runtime.get(run_id)
            info = await parked(run, "doubt")
            assert "may still be under way" in info.reason
            assert len(bank.requests) == 1
            rest = [entry for entry in await entries_of(run) if isinstance(entry, events.RunParked)]
            assert [entry.due_at for entry in rest] == [began + int(window * 1e6)]
            stage.clock.advance(1)
            assert await run.result(timeout=20) == "paid 5"
        assert [attempt for _, attempt in bank.requests] == [1, 2]
        assert len(bank.keys) == 1
        assert len(looks) == 2

    async def test_the_window_is_that_of_the_request_and_not_of_the_new_code(self, stage: Stage, bank: Bank) -> None:
        """The request that may be in flight was sent with the timeout that its intent recorded."""

        def code(timeout: float) -> Durable[str, []]:
            async def tale(ctx: hf.Context) -> str:
                return await ctx.step(bank.pay, 5, effect="once", verify=lambda cents: hf.NOT_DONE, timeout=timeout)

            return hf.durable(name="tale")(tale)

        began = stage.clock()
        run_id = await interrupted(stage, code(300.0), bank)
        stage.clock.advance(10)
        async with stage.open(code(1.0)) as runtime:
            run = await runtime.get(run_id)
            await parked(run, "doubt")
            (rest,) = [entry for entry in await entries_of(run) if isinstance(entry, events.RunParked)]
            assert rest.due_at == began + 300_000_000
        assert len(bank.requests) == 1

    @pytest.mark.parametrize("found", ["raises", "another type", "hf.InDoubt"])
    async def test_a_verify_that_cannot_tell_leaves_the_doubt(self, stage: Stage, bank: Bank, found: str) -> None:
        """A check that cannot run proves nothing, neither done nor not done."""

        def look(cents: int) -> object:
            match found:
                case "raises":
                    raise ConnectionError("no answer")
                case "another type":
                    return 7
                case _:
                    raise hf.InDoubt

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            try:
                return await ctx.step(bank.pay, 5, effect="once", verify=look)
            except hf.InDoubt:
                return "still unknown"

        run_id = await interrupted(stage, tale, bank)
        async with stage.open(tale) as runtime:
            run = await runtime.get(run_id)
            assert await run.result(timeout=20) == "still unknown"
            (resolved,) = [entry for entry in await entries_of(run) if isinstance(entry, events.StepResolved)]
        assert (resolved.how, resolved.outcome) == ("policy", "unknown")
        assert len(bank.requests) == 1

    async def test_verify_is_asked_after_an_error_too(self, stage: Stage, bank: Bank) -> None:
        """A live failure of a `once` step is looked into at once."""
        bank.fails = ConnectionError("reset")

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            return await ctx.step(bank.pay, 5, effect="once", verify=lambda cents: f"found {cents}")

        async with stage.open(tale) as runtime:
            assert await soon(runtime.run(tale)) == "found 5"


class TestPerson:
    """A doubt that waits is ended by a person's word."""

    async def waiting(self, stage: Stage, bank: Bank) -> tuple[Durable[str, []], str]:
        """Bring a run to where it waits for a person."""

        @hf.durable
        async def tale(ctx: hf.Context) -> str:
            return await ctx.step(bank.pay, 5, effect="once", in_doubt="wait")

        run_id = await interrupted(stage, tale, bank)
        async with stage.open(tale) as runtime:
            info = await parked(await runtime.get(run_id), "doubt")
            assert info.waiting_for is not None
            assert "step 0/pay#1 is in doubt: the process died" in info.reason
        return tale, run_id

    async def test_a_persons_value_is_the_steps_result(self, stage: Stage, bank: Bank) -> None:
        """Who said it and why is part of the history."""
        tale, run_id = await self.waiting(stage, bank)
        async with stage.open(tale) as runtime:
            run = await runtime.get(run_id)
            await run.resolve("0/pay#1", "paid by hand", by="ann", note="saw it in the ledger")
            assert await run.result(timeout=20) == "paid by hand"
            (resolved,) = [entry for entry in await entries_of(run) if isinstance(entry, events.StepResolved)]
        assert (resolved.how, resolved.outcome, resolved.value) == ("person", "done", "paid by hand")
        assert (resolved.by, resolved.note) == ("ann", "saw it in the ledger")
        assert len(bank.requests) == 1

    async def test_a_person_may_resolve_while_no_worker_runs(self, stage: Stage, bank: Bank) -> None:
        """The word waits in the inbox; the next worker takes it."""
        tale, run_id = await self.waiting(stage, bank)
        async with stage.open(work=False) as runtime:
            await (await runtime.get(run_id)).resolve("0/pay#1", "paid by hand", by="ann")
        async with stage.open(tale) as runtime:
            assert await (await runtime.get(run_id)).result(timeout=20) == "paid by hand"

    async def test_a_persons_not_done_allows_another_attempt(self, stage: Stage, bank: Bank) -> None:
        """Once no request of the first can still act, the step is performed again, with the same key."""
        tale, run_id = await self.waiting(stage, bank)
        async with stage.open(tale) as runtime:
            run = await runtime.get(run_id)
            await run.resolve("0/pay#1", hf.NOT_DONE, by="ann")
            stage.clock.advance(limits.IN_FLIGHT_SECONDS)
            assert await run.result(timeout=20) == "paid 5"
        assert [attempt for _, attempt in bank.requests] == [1, 2]
        assert len(bank.keys) == 1

    async def test_a_second_doubt_of_the_same_step_can_be_ended_too(self, stage: Stage, bank: Bank) -> None:
        """One word per doubt, not one per step."""
        tale, run_id = await self.waiting(stage, bank)
        bank.hurdle, bank.stops = Hurdle(), True
        stage.clock.advance(limits.IN_FLIGHT_SECONDS)
        async with stage.open(tale) as runtime:
            await (await runtime.get(run_id)).resolve("0/pay#1", hf.NOT_DONE)
            await soon(bank.hurdle.reached.wait())
        bank.stops = False
        async with stage.open(tale) as runtime:
            run = await runtime.get(run_id)
            await soon(_doubted(run, 2))
            await run.resolve("0/pay#1", "by hand")
            assert await run.result(timeout=20) == "by hand"
        assert len(bank.requests) == 2

    async def test_a_value_of_another_type_does_not_end_the_run(self, stage: Stage, bank: Bank) -> None:
        """A slip of the person's is theirs to mend: the doubt stays, and the right word still ends it."""
        tale, run_id = await self.waiting(stage, bank)
        async with stage.open(tale) as runtime:
            run = await runtime.get(run_id)
            await run.resolve("0/pay#1", {"not": "text"}, by="ann")
            await soon(_parked_times(run, 2))
            assert (await run.info()).status is hf.Status.WAITING
            await run.resolve("0/pay#1", "paid by hand", by="ann")
            assert await run.result(timeout=20) == "paid by hand"

    async def test_only_a_step_in_doubt_can_be_resolved(self, stage: Stage, bank: Bank) -> None:
        """Nothing else can be put into a journal by a resolve."""
        tale, run_id = await self.waiting(stage, bank)
        async with stage.open(work=False) as runtime:
            run = await runtime.get(run_id)
            for step in ("0/pay#2", "pay", ""):
                with pytest.raises(hf.NotFound):
                    await run.resolve(step, "x")
        async with stage.open(tale) as runtime:
            run = await runtime.get(run_id)
            await run.resolve("0/pay#1", "x")
            assert await run.result(timeout=20) == "x"
            with pytest.raises(hf.NotFound):
                await run.resolve("0/pay#1", "y")

    async def test_two_people_at_once_are_told_apart(self, stage: Stage, bank: Bank) -> None:
        """The first word counts; the second is told that it came too late."""
        _, run_id = await self.waiting(stage, bank)
        async with stage.open(work=False) as runtime:
            run = await runtime.get(run_id)
            await run.resolve("0/pay#1", "first", by="ann")
            with pytest.raises(hf.Conflict, match="ended before"):
                await run.resolve("0/pay#1", "second", by="bob")


async def _doubted(run: hf.Run[str], times: int) -> None:
    await _times(run, events.StepDoubted, times)


async def _parked_times(run: hf.Run[str], times: int) -> None:
    await _times(run, events.RunParked, times)


async def _times(run: hf.Run[str], kind: type, times: int) -> None:
    async for event in run.events():
        if isinstance(event, kind):
            times -= 1
            if not times:
                return


async def test_a_step_that_kills_its_worker_again_and_again_is_quarantined(stage: Stage, bank: Bank) -> None:
    """An intent is no progress when the last one was its own: a poison step is set aside, whatever its effect."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(bank.pay, 5, effect="keyed")

    for _ in range(limits.STALLS + 1):
        bank.hurdle = Hurdle()
        async with stage.open(tale) as runtime:
            run = await runtime.start(tale, key="k")
            await soon(bank.hurdle.reached.wait())
            await stage.declare_dead()
    async with stage.open(tale) as runtime:
        run = await runtime.get(key="k")
        with pytest.raises(hf.RunError, match="no_progress"):
            await run.result(timeout=20)
        assert (await run.info()).status is hf.Status.QUARANTINED
