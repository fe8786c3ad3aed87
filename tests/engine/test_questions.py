"""Questions: a person decides about exactly what was shown, once, in time."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast import events
from holdfast.client.local import LocalClient
from holdfast.client.protocol import Question
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import RunId
from holdfast.core.post import ANSWER, AnswerBody
from holdfast.core.status import Status
from holdfast.engine.drive import Drive
from holdfast.engine.outbox import Outbox
from holdfast.store.value import NewPost
from tests.engine.stage import Hurdle, Stage, asked, entries_of, kinds_of, parked, paused, seen, soon


@hf.durable
async def asks(ctx: hf.Context) -> list[Any]:
    """Ask, and return the decision."""
    decision = await ctx.ask("Refund?", show={"order": 42}, args={"cents": 500}, expires=timedelta(hours=1))
    return [bool(decision), decision.by, decision.note, decision.args, decision.expired]


GO = hf.Signal("go", None)


def yes_to(question: Question) -> NewPost:
    """Return Ann's answer as it lies in the inbox."""
    body = AnswerBody(question.step, True, question.shown, by="ann")
    return NewPost(run=RunId(question.run), kind=ANSWER, key="answer/1", body=msgspec.json.encode(body))


@hf.durable
async def asks_and_waits(ctx: hf.Context) -> bool:
    """Ask, wait for something else, and say whether nobody answered."""
    decision = await ctx.ask("Refund?", expires=timedelta(hours=1))
    await ctx.receive(GO)
    return decision.expired


async def test_a_decision_ends_the_wait_with_who_and_why(every: Stage) -> None:
    """What the person saw, and what they said, is in the journal."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        info = await parked(run, "ask")
        assert info.reason == "ask: Refund?"
        (question,) = await runtime.questions()
        assert (question.run, question.text, question.show, question.args) == (
            run.id, "Refund?", {"order": 42}, {"cents": 500},
        )  # fmt: skip
        assert question.expires_at is not None
        assert question.expires_at - question.asked_at == timedelta(hours=1)
        await runtime.answer(question, True, by="ann", note="it was broken")
        assert await run.result(timeout=20) == [True, "ann", "it was broken", {"cents": 500}, False]
        (answered,) = [entry for entry in await entries_of(run) if isinstance(entry, events.QuestionAnswered)]
        assert answered.shown == question.shown
        assert not await runtime.questions()


async def test_what_may_be_changed_is_changed_and_nothing_else(every: Stage) -> None:
    """An answer may change arguments that the question named; another name is refused, and the question stays open."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        (question,) = await run.questions()
        with pytest.raises(InvalidInput, match="nobody change euros"):
            await runtime.answer(question, True, args={"euros": 5})
        await runtime.answer(question, True, args={"cents": 300})
        assert (await run.result(timeout=20))[3] == {"cents": 300}


async def test_an_answer_to_something_else_than_what_is_shown_is_refused(every: Stage) -> None:
    """Whoever looked at another version decides nothing."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        (question,) = await run.questions()
        with pytest.raises(hf.Conflict, match="something else"):
            await runtime.answer(question.id, True, shown="0" * 64)
        assert len(await run.questions()) == 1


async def test_a_question_is_answered_once(every: Stage) -> None:
    """The second answer is refused, whether the run has taken the first or not."""
    async with every.open(work=False) as runtime:
        run = await runtime.start(asks)
    async with every.open(asks) as runtime:
        await parked(await runtime.get(run.id), "ask")
    async with every.open(work=False) as runtime:
        (question,) = await runtime.questions()
        await runtime.answer(question, False, by="ann")
        with pytest.raises(hf.Conflict, match="answered before"):
            await runtime.answer(question, True, by="bob")
    async with every.open(asks) as runtime:
        run = await runtime.get(run.id)
        assert (await run.result(timeout=20))[:2] == [False, "ann"]
        with pytest.raises(hf.Conflict, match="answered before: no, by ann"):
            await runtime.answer(question, True, by="bob")


@pytest.mark.parametrize("unknown", ["nonsense", "{run}", "{run}.99", "{run}.x"])
async def test_an_answer_to_a_question_that_nobody_asks_is_refused(stage: Stage, unknown: str) -> None:
    """By name, and without touching the run."""
    async with stage.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        with pytest.raises((hf.NotFound, InvalidInput)):
            await runtime.answer(unknown.format(run=run.id), True, shown="0" * 64)
        assert (await run.info()).status is Status.WAITING


async def test_past_its_time_a_question_is_decided_no_by_nobody(every: Stage) -> None:
    """The decision says that it expired."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        every.clock.advance(3600)
        assert await run.result(timeout=20) == [False, None, None, None, True]


async def test_an_answer_that_comes_too_late_is_refused_although_nobody_has_noticed_yet(every: Stage) -> None:
    """Past its time it is decided, whether a worker was there to write that down or not."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
    every.clock.advance(3600)
    async with every.open(work=False) as runtime:
        (question,) = await runtime.questions()
        with pytest.raises(hf.Conflict, match="past its time"):
            await runtime.answer(question, True)
    async with every.open(asks) as runtime:
        run = await runtime.get(run.id)
        assert (await run.result(timeout=20))[-1] is True


async def test_an_answer_that_lands_when_the_question_has_expired_is_refused(
    every: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at in time and came too late: whoever gave it is not told that it counts."""
    async with every.open(asks_and_waits) as runtime:
        run = await runtime.start(asks_and_waits)
        await parked(run, "ask")
        (question,) = await runtime.questions()
        post = LocalClient._post

        async def slow(self: LocalClient, *args: Any) -> str:
            every.clock.advance(3600)
            await parked(run, "signal")
            return await post(self, *args)

        with monkeypatch.context() as patched:
            patched.setattr(LocalClient, "_post", slow)
            with pytest.raises(hf.Conflict, match="past its time"):
                await runtime.answer(question, True)
        await run.signal(GO, None)
        assert await run.result(timeout=20) is True


async def test_an_answer_that_lands_before_anybody_wrote_that_the_question_expired_counts(
    every: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look at the inbox and the entry a post may come; who sent it was told that it counts."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        (question,) = await runtime.questions()
        write, answered = Drive.write_if_heard, list[bool]()

        async def slow(self: Drive, entry: events.QuestionAnswered) -> bool:
            if not answered:
                answered.append(True)
                await self.store.post(yes_to(question))
            return await write(self, entry)

        monkeypatch.setattr(Drive, "write_if_heard", slow)
        every.clock.advance(3600)
        assert (await run.result(timeout=20))[:2] == [True, "ann"]


async def test_an_answer_of_which_only_a_refusal_of_another_branch_told_counts(
    every: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That something came is known then, and not what: whoever writes says what he has read, not what is known."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        (question,) = await runtime.questions()
        append = Outbox.append

        def behind_another(self: Outbox, *entries: Any, heard: int | None = None, **rest: Any) -> Any:
            async def late() -> Any:
                posted = await runtime._store.post(yes_to(question))
                self._journal.inbox_seq = max(self._journal.inbox_seq, posted.seq)
                return await append(self, *entries, heard=heard, **rest)

            return append(self, *entries, **rest) if heard is None else asyncio.ensure_future(late())

        monkeypatch.setattr(Outbox, "append", behind_another)
        every.clock.advance(3600)
        assert (await run.result(timeout=20))[:2] == [True, "ann"]


async def test_an_answer_in_time_counts_although_the_run_hears_of_it_late(every: Stage) -> None:
    """Whoever answered was told that it counts; that no worker was there is not their fault."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
    every.clock.advance(3599)
    async with every.open(work=False) as runtime:
        (question,) = await runtime.questions()
        await runtime.answer(question, True, by="ann")
    every.clock.advance(3600)
    async with every.open(asks) as runtime:
        run = await runtime.get(run.id)
        assert (await run.result(timeout=20))[:2] == [True, "ann"]


async def test_a_question_is_listed_while_other_branches_go_on(every: Stage) -> None:
    """The run is not at rest, but a person may decide meanwhile."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        decision, _ = await ctx.gather(ctx.ask("May I?"), ctx.step(hurdle))
        return [decision.yes]

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        question = await asked(run)
        assert [one.id for one in await runtime.questions()] == [question.id]
        assert (await run.info()).status is Status.RUNNING
        await runtime.answer(question, True)
        await seen(run, lambda entry: isinstance(entry, events.QuestionAnswered))
        hurdle.open.set()
        assert await run.result(timeout=20) == [True]


async def test_a_question_is_listed_while_its_run_is_paused(every: Stage) -> None:
    """Its answer waits until somebody lets the run go on."""
    async with every.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        await run.pause()
        await paused(run)
        (question,) = await runtime.questions()
        await runtime.answer(question, True, by="ann")
        await run.resume()
        assert (await run.result(timeout=20))[:2] == [True, "ann"]


async def test_several_questions_of_one_run_are_answered_each_by_itself(every: Stage) -> None:
    """The answer to one is not the other's, even if both show the same."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[bool]:
        return [bool(decision) for decision in await ctx.gather(ctx.ask("May I?"), ctx.ask("May I?"))]

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "ask")
        first, second = sorted(await run.questions(), key=lambda question: question.step)
        await runtime.answer(second, True)
        await seen(run, lambda entry: isinstance(entry, events.QuestionAnswered))
        await runtime.answer(first, False)
        assert await run.result(timeout=20) == [False, True]


async def test_a_decision_is_the_same_live_and_replayed(every: Stage) -> None:
    """Every field of it, so that a step which is given one asks for the same again."""
    hurdle, decisions = Hurdle(), list[hf.Decision]()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        decision = await ctx.ask("May I?", args={"cents": 5})
        decisions.append(decision)
        await ctx.step(hurdle)
        return "done"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "ask")
        (question,) = await run.questions()
        every.clock.advance(60)
        await runtime.answer(question, True, by="ann", note="yes", args={"cents": 4})
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with every.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "done"
    assert decisions[0] == decisions[1]
    assert decisions[0].at == every.clock()


async def test_a_question_shows_something_large(every: Stage) -> None:
    """What does not fit its entry is kept beside it, and shown all the same."""
    large = "x" * 100_000

    @hf.durable
    async def tale(ctx: hf.Context) -> bool:
        return bool(await ctx.ask("Publish?", show=large))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "ask")
        (question,) = await runtime.questions()
        assert question.show == large
        await runtime.answer(question, True)
        assert await run.result(timeout=20) is True
        assert (await kinds_of(run)).count("QuestionAsked") == 1


@dataclass
class Item:
    """Something of a program's own."""

    name: str
    count: int


async def test_what_is_shown_may_be_anything_that_can_be_written_as_data(every: Stage) -> None:
    """It is for people's eyes: a value of a class of the program's own is shown as what it holds."""

    @hf.durable
    async def tale(ctx: hf.Context) -> bool:
        return bool(await ctx.ask("Send it?", show=[Item("tea", 2)], args={"item": Item("tea", 2)}))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "ask")
        (question,) = await runtime.questions()
        assert question.show == [{"name": "tea", "count": 2}]
        assert question.args == {"item": {"name": "tea", "count": 2}}
        await runtime.client.answer(question.id, True, shown=question.shown)
        assert await soon(run.result())
