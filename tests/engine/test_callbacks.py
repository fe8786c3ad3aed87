"""Callback tokens: whoever holds one answers one wait of one run, once, while it lasts."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.errors import AlreadyAnswered, Expired, InvalidInput
from holdfast.core.token import make_token
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, seen, soon

PAID = hf.Signal("paid", int)
MAILED: list[str] = []
"""The tokens that the runs of a test sent, in order."""


@pytest.fixture(autouse=True)
def no_mail() -> None:
    """Forget what was sent before."""
    MAILED.clear()


async def mail(token: str) -> None:
    """Send a token to somebody outside."""
    MAILED.append(token)


@hf.durable
async def asks(ctx: hf.Context) -> list[Any]:
    """Ask by a link in a mail."""
    callback = await ctx.callback("Refund?", show={"order": 42}, args={"cents": 500}, expires=timedelta(hours=1))
    await ctx.step(mail, callback.token)
    decision = await callback.result()
    return [bool(decision), decision.by, decision.args, decision.expired]


@hf.durable
async def waits(ctx: hf.Context) -> int | None:
    """Let an outside system say what was paid."""
    callback = await ctx.callback(PAID, expires=timedelta(hours=1))
    await ctx.step(mail, callback.token)
    return await callback.result()


async def test_a_token_answers_a_question_by_yes_or_no(every: Stage) -> None:
    """Who decided, and what they changed, is in the journal; what it is about can be looked at before."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        assert (await parked(run, "ask")).reason == "ask: Refund?"
        known = await runtime.callback(MAILED[0])
        assert (known.run, known.state, known.signal) == (run.id, "open", None)
        assert known.question is not None
        assert (known.question.text, known.question.show) == ("Refund?", {"order": 42})
        await runtime.answer_token(MAILED[0], True, args={"cents": 300}, by="ann")
        assert await run.result(timeout=20) == [True, "ann", {"cents": 300}, False]
        assert (await runtime.callback(MAILED[0])).state == "answered"


async def test_a_token_brings_a_value_to_a_wait(every: Stage) -> None:
    """It is read as what the signal carries."""
    async with every.open(waits) as runtime:
        run = await runtime.start(waits)
        assert (await parked(run, "callback")).reason == "callback: paid"
        assert (await runtime.callback(MAILED[0])).signal == "paid"
        await runtime.answer_token(MAILED[0], 40, by="the bank")
        assert await run.result(timeout=20) == 40
        (received,) = [entry for entry in await entries_of(run) if isinstance(entry, events.SignalReceived)]
        assert (received.name, received.by, received.value) == ("paid", "the bank", 40)


async def test_a_resumed_run_makes_the_same_token(every: Stage) -> None:
    """What was mailed before a crash is worth as much after it; the step that mailed it finds its input unchanged."""
    made: list[str] = []

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        callback = await ctx.callback(PAID)
        made.append(callback.token)
        await ctx.step(mail, callback.token)
        return await callback.result()

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "callback")
    async with every.open(tale) as runtime:
        await runtime.answer_token(MAILED[0], 7)
        assert await (await runtime.get(run.id)).result(timeout=20) == 7
    assert len(made) > 1
    assert set(made) == {MAILED[0]}
    assert len(MAILED) == 1


async def test_a_token_answers_its_own_wait_and_no_other(every: Stage) -> None:
    """Two waits for one signal, and a third that anybody may end: each gets what was meant for it."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int]:
        one, two = await ctx.callback(PAID), await ctx.callback(PAID)
        await ctx.step(mail, one.token)
        await ctx.step(mail, two.token)
        return [await two.result(), await ctx.receive(PAID), await one.result()]

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "callback")
        await runtime.answer_token(MAILED[0], 1)
        await run.signal(PAID, 3)
        await runtime.answer_token(MAILED[1], 2)
        assert await run.result(timeout=20) == [2, 3, 1]


async def test_an_answer_that_comes_before_it_is_waited_for_is_kept(every: Stage) -> None:
    """Whoever is quick need not wait until the run waits."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> bool:
        callback = await ctx.callback("Go on?")
        await ctx.step(mail, callback.token)
        await ctx.step(hurdle.__call__, key="hurdle")
        return bool(await callback.result())

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await runtime.answer_token(MAILED[0], True)
        assert (await runtime.callback(MAILED[0])).state == "answered"
        hurdle.open.set()
        assert await run.result(timeout=20) is True


async def test_the_same_answer_again_is_the_same_answer(every: Stage) -> None:
    """While it waits in the inbox, once it is taken, and when the run has ended; another answer is refused."""
    async with every.open(work=False) as runtime, every.open(asks, waits) as worker:
        kinds: list[tuple[Any, Any, Any]] = [(asks, True, False), (waits, 5, 6)]
        for what, answer, other in kinds:
            MAILED.clear()
            run = await worker.start(what)
            await parked(run, "ask" if what is asks else "callback")
            for _ in range(2):
                await runtime.answer_token(MAILED[0], answer)
                with pytest.raises(AlreadyAnswered):
                    await runtime.answer_token(MAILED[0], other)
            await run.result(timeout=20)
            await runtime.answer_token(MAILED[0], answer)
            with pytest.raises(AlreadyAnswered) as refused:
                await runtime.answer_token(MAILED[0], other)
            assert refused.value.run == run.id
            closing = ("QuestionAnswered", "SignalReceived")
            assert sum(kind in closing for kind in await kinds_of(run)) == 1


async def test_of_a_person_and_a_token_the_first_decides(every: Stage) -> None:
    """It is one question, whichever way it is answered."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        (question,) = await runtime.questions()
        await runtime.answer(question, False, by="ann")
        with pytest.raises(AlreadyAnswered):
            await runtime.answer_token(MAILED[0], True)
        assert (await run.result(timeout=20))[:2] == [False, "ann"]
        MAILED.clear()
        again = await runtime.start(asks)
        await parked(again, "ask")
        (question,) = await again.questions()
        await runtime.answer_token(MAILED[0], True)
        with pytest.raises(hf.Conflict, match="answered before"):
            await runtime.answer(question, False)
        assert (await again.result(timeout=20))[0] is True


@pytest.mark.parametrize("what", [asks, waits], ids=["question", "signal"])
async def test_a_token_expires_with_its_wait(every: Stage, what: Any) -> None:
    """Past its time nothing is taken from it, whether the run has noticed that or not."""
    async with every.open(what) as runtime:
        run = await runtime.start(what)
        await parked(run, "ask" if what is asks else "callback")
        every.clock.advance(3600)
        with pytest.raises(Expired, match=r"its time has passed|its run has ended"):
            await runtime.answer_token(MAILED[0], True)
        assert await run.result(timeout=20) == ([False, None, None, True] if what is asks else None)
        assert (await runtime.callback(MAILED[0])).state == "expired"
        with pytest.raises(Expired):
            await runtime.answer_token(MAILED[0], True)


async def test_a_token_of_a_run_that_has_ended_is_worth_nothing(every: Stage) -> None:
    """Cancelled, or finished without having waited; once it is deleted, nobody knows the token."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(mail, (await ctx.callback(PAID)).token)

    async with every.open(tale, waits) as runtime:
        run = await runtime.start(waits)
        await parked(run, "callback")
        await run.cancel()
        with pytest.raises(hf.RunError):
            await run.result(timeout=20)
        with pytest.raises(Expired):
            await runtime.answer_token(MAILED[0], 1)
        ended = await runtime.start(tale)
        await ended.result(timeout=20)
        with pytest.raises(Expired, match="completed"):
            await runtime.answer_token(MAILED[1], 1)
        await ended.delete()
        with pytest.raises(hf.NotFound):
            await runtime.answer_token(MAILED[1], 1)


async def test_a_token_of_a_former_generation_is_worth_nothing(every: Stage) -> None:
    """What a run has forgotten nobody answers; the wait of the next generation has a token of its own."""

    @hf.durable
    async def loop(ctx: hf.Context, at: int) -> int:
        callback = await ctx.callback(PAID)
        await ctx.step(mail, callback.token)
        if at == 0:
            await ctx.continue_as(1)
        return await callback.result()

    async with every.open(loop) as runtime:
        run = await runtime.start(loop, 0)
        await parked(run, "callback")
        with pytest.raises(Expired, match="gone on without it"):
            await runtime.answer_token(MAILED[0], 1)
        await runtime.answer_token(MAILED[1], 2)
        assert await run.result(timeout=20) == 2


async def test_a_run_that_is_paused_keeps_what_its_token_brought(every: Stage) -> None:
    """It is taken when the run goes on."""
    async with every.open(waits) as runtime:
        run = await runtime.start(waits)
        await parked(run, "callback")
        await run.pause()
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.reason == "paused")
        await runtime.answer_token(MAILED[0], 9)
        await run.resume()
        assert await run.result(timeout=20) == 9


async def test_a_value_that_cannot_be_read_does_not_use_the_token_up(every: Stage) -> None:
    """The run waits on, and the next is taken."""
    async with every.open(waits) as runtime:
        run = await runtime.start(waits)
        await parked(run, "callback")
        await runtime.answer_token(MAILED[0], "forty")
        await seen(run, lambda entry: isinstance(entry, events.StepStarted) and entry.attempt == 2)
        await runtime.answer_token(MAILED[0], 40)
        assert await run.result(timeout=20) == 40


async def test_nobody_makes_a_token_by_himself(every: Stage) -> None:
    """One of another store, of another run or changed by hand is no token; nothing is told of the run."""
    async with every.open(waits) as runtime:
        run = await runtime.start(waits)
        await parked(run, "callback")
        (started,) = [entry for entry in await entries_of(run) if isinstance(entry, events.StepStarted)]
        for forged in (make_token(bytes(32), run.id, started.step), MAILED[0][:-1], f"{MAILED[0]}A", ""):
            with pytest.raises(hf.NotFound) as refused:
                await runtime.answer_token(forged, 1)
            assert run.id not in str(refused.value)
        with pytest.raises(InvalidInput):
            await runtime.answer_token(b"hfc_", 1)  # type: ignore[arg-type]
        assert (await run.info()).reason == "callback: paid"


async def test_a_token_is_kept_nowhere(every: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither the journal nor the logs nor what is printed of a callback holds it."""
    printed: list[str] = []

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        callback = await ctx.callback(PAID)
        printed.append(f"{callback!r} {callback}")
        ctx.log.info("sending", callback=callback)
        await ctx.step(mail, callback.token)
        return await callback.result()

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "callback")
        await runtime.answer_token(MAILED[0], 1)
        await run.result(timeout=20)
        archive = b"".join([line async for line in run.export()])
    assert MAILED[0].encode() not in archive
    told = "".join(capfd.readouterr())
    assert "sending" in told
    assert MAILED[0] not in told + "".join(printed)


async def test_an_answer_that_does_not_fit_is_refused_before_it_is_sent(every: Stage) -> None:
    """A question wants yes or no, and lets change what it named; anything else wants a value and nothing beside."""
    async with every.open(asks, waits) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        for wrong in ("yes", 1, None):
            with pytest.raises(InvalidInput, match="True or False"):
                await runtime.answer_token(MAILED[0], wrong)
        with pytest.raises(InvalidInput, match="nobody change euros"):
            await runtime.answer_token(MAILED[0], True, args={"euros": 5})
        other = await runtime.start(waits)
        await parked(other, "callback")
        with pytest.raises(InvalidInput, match="for a question"):
            await runtime.answer_token(MAILED[1], 1, note="why")
        assert (await runtime.callback(MAILED[0])).state == (await runtime.callback(MAILED[1])).state == "open"


async def test_code_may_stop_waiting_and_wait_again(every: Stage) -> None:
    """A timeout of its own ends its wait and not the callback's; on replay it is the same."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        callback = await ctx.callback(PAID)
        await ctx.step(mail, callback.token)

        async def impatient() -> bool:
            try:
                async with asyncio.timeout(0.01):
                    await callback.result()
            except TimeoutError:
                return True
            return False

        # While a branch is under way the run does not rest, so that the time runs out.
        late, _ = await ctx.gather(impatient(), ctx.step(hurdle.__call__, key="hurdle"))
        return [late, await callback.result(), await callback.result()]

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await seen(run, lambda entry: isinstance(entry, events.StepFailed) and entry.cancelled)
        hurdle.open.set()
        await parked(run, "callback")
        await runtime.answer_token(MAILED[0], 4)
        assert await run.result(timeout=20) == [True, 4, 4]


@pytest.mark.parametrize("answered", [True, False])
async def test_branches_that_wait_for_one_callback_get_the_same(every: Stage, answered: bool) -> None:
    """It is recorded once, whether the token came or the time was over."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int | None]:
        callback = await ctx.callback(PAID, expires=3600)
        await ctx.step(mail, callback.token)
        return list(await ctx.gather(callback.result(), callback.result()))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "callback")
        if answered:
            await runtime.answer_token(MAILED[0], 8)
        else:
            every.clock.advance(3600)
        assert await run.result(timeout=20) == ([8, 8] if answered else [None, None])
        steps = [getattr(entry, "step", "") for entry in await entries_of(run) if entry.type != "RunParked"]
        assert steps.count("0/callback#1") == 2


async def test_a_callback_that_became_a_question_diverges(every: Stage) -> None:
    """Changed code is refused before it gives a token away that would mean something else."""
    asked = [True]

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        callback: Any = await (ctx.callback("Paid?") if not asked else ctx.callback(PAID))
        await ctx.step(mail, callback.token)
        await callback.result()

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "callback")
        asked.clear()
        await runtime.answer_token(MAILED[0], 1)
        with pytest.raises(hf.RunError, match="diverged"):
            await run.result(timeout=20)


async def test_two_senders_at_once_leave_one_answer(every: Stage) -> None:
    """Of many that race, those who said the same are told so and the others are refused."""
    async with every.open(work=False) as runtime, every.open(waits) as worker:
        run = await worker.start(waits)
        await parked(run, "callback")
        told = await asyncio.gather(
            *(runtime.answer_token(MAILED[0], number % 2) for number in range(10)), return_exceptions=True
        )
        value = await run.result(timeout=20)
        assert [isinstance(one, AlreadyAnswered) for one in told] == [number % 2 != value for number in range(10)]


@pytest.mark.parametrize("answered", [True, False])
async def test_an_exported_run_that_gave_a_token_away_is_replayed(every: Stage, answered: bool, tmp_path: Any) -> None:
    """An archive has no secret: the code makes another token there, and the step that it is given to is the same."""
    async with every.open(waits) as runtime:
        run = await runtime.start(waits)
        await parked(run, "callback")
        if answered:
            await runtime.answer_token(MAILED[0], 40)
            await run.result(timeout=20)
        archive = tmp_path / "run.jsonl"
        archive.write_bytes(b"".join([line async for line in run.export()]))
    (replayed,) = hf.testing.replay(waits, archive)
    assert len(MAILED) == 1
    assert replayed is not None
