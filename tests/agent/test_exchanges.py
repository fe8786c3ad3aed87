"""What becomes of an exchange with a harness that is busy, cut, lost, at its limit, or cannot be gone on from."""

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.core import entry as e
from holdfast.core.message import ASSISTANT, Message, Text
from holdfast.harness import Ask, Ended, Start
from holdfast.models import ModelBusy, ModelCut, ModelRefused, Usage
from holdfast.server import Hooks
from holdfast.testing import ScriptedHarness, ScriptedProvider, call, every_crash
from holdfast.testing.scripted_harness import ScriptedSession
from tests.agent.lines import LIMIT_SECONDS, entries_of, steer

QUICK = hf.Retry(attempts=4, first=0.001, most=0.01)


@hf.tool(effect="repeat")
async def look(order: str) -> str:
    """Look an order up."""
    return f"order {order}: broken"


def told(ask: Ask) -> str:
    """Say all that the harness was told."""
    parts = [part for message in ask.messages for part in message.parts]
    return " | ".join(str(getattr(part, "text", part)) for part in parts)


def agent(harness: Any, **options: Any) -> hf.Agent[Any]:
    """Return an agent whose turns a harness takes."""
    return hf.Agent("clerk", harness=harness, **{"retry": QUICK, **options})


async def ended(runtime: Any, clerk: hf.Agent[Any], text: str = "hello", **options: Any) -> tuple[str, list[e.Entry]]:
    """Return how a turn ended, and its journal."""
    run = await runtime.start(clerk, text, **options)
    async with asyncio.timeout(LIMIT_SECONDS):
        await runtime.client.wait(run.id)
    info = await run.info()
    return (str(info.result) if info.status == "completed" else info.reason), await entries_of(run)


async def test_a_busy_harness_is_asked_again_and_one_that_refuses_is_not() -> None:
    """Nothing was created, so that there is nothing to doubt; what will never be taken fails at once."""
    attempts: list[str] = []

    def busy(ask: Ask) -> Any:
        attempts.append(ask.key)
        return ModelBusy("too many", retry_after=0.001) if len(attempts) < 3 else "at last"

    harness = ScriptedHarness(busy)
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        said, entries = await ended(runtime, clerk)
    assert said == "at last"
    assert len(harness.provider.created) == 1
    assert len(set(attempts)) == 3
    assert not [entry for entry in entries if isinstance(entry, e.StepDoubted)]
    refusing = ScriptedHarness(ModelRefused("no such model"))
    async with hf.testing.open(hf.App(clerk := agent(refusing))) as runtime:
        said, _ = await ended(runtime, clerk)
    assert "after 1 attempt: ModelRefused: no such model" in said


async def test_what_is_cut_again_and_again_fails_without_being_created_again_and_a_retry_attaches() -> None:
    """Its handle is known: there is one creation, whoever tries again, and however often."""
    harness = ScriptedHarness("one two three")
    harness.provider.cuts = [(0, False)] * 4
    async with hf.open("memory://", hf.App(clerk := agent(harness))) as runtime:
        run = await runtime.start(clerk, "hello")
        with pytest.raises(hf.RunError, match="ModelCut: cut after 0 events"):
            await run.result(timeout=LIMIT_SECONDS)
        assert len(harness.attached) == 3
        again = await run.retry()
        assert await again.result(timeout=LIMIT_SECONDS) == "one two three"
    assert len(harness.provider.created) == 1


async def test_cuts_behind_which_something_came_are_not_counted_together() -> None:
    """A long stream may be cut more often than it may be tried in vain."""
    harness = ScriptedHarness("a b c d e f g h")
    harness.provider.cuts = [(place, False) for place in range(1, 8)]
    async with hf.open("memory://", hf.App(clerk := agent(harness))) as runtime:
        run = await runtime.start(clerk, "hello")
        assert await run.result(timeout=LIMIT_SECONDS) == "a b c d e f g h"
    assert [after for _, after in harness.attached] == [str(place) for place in range(1, 8)]


class _Lost(ScriptedHarness):
    """Creates, and loses the answer before it knows the id: the first so many times."""

    def __init__(self, *lines: Any, times: int = 1, **options: Any) -> None:
        super().__init__(*lines, **options)
        self.times = times

    async def open(self, start: Start) -> ScriptedSession:
        return _LostSession(self)


class _LostSession(ScriptedSession):
    async def create(self, ask: Ask) -> Any:
        events = super().create(ask)
        async for event in events:
            if self._harness.times:  # type: ignore[attr-defined]
                self._harness.times -= 1  # type: ignore[attr-defined]
                await events.aclose()  # type: ignore[attr-defined]
                raise ModelCut("the line went dead before the id came")
            yield event


async def test_a_creation_whose_answer_was_lost_is_doubted_shown_and_charged_before_it_is_made_again() -> None:
    """Both are paid for, since both may have been made; the second goes on behind the same exchange as the first."""
    harness = _Lost("one", told, times=0)
    async with hf.testing.open(hf.App(clerk := agent(harness, settings={"max_tokens": 100}))) as runtime:
        await ended(runtime, clerk, conversation="chat")
        harness.times = 1
        budget = hf.Budget(tokens=10_000, calls=10)
        said, entries = await ended(runtime, clerk, "again", conversation="chat", budget=budget)
        run = (await runtime.runs(limit=1))[0]
        info = await (await runtime.get(run.id)).info()
    assert said == "again"
    assert [entry.why for entry in entries if isinstance(entry, e.StepDoubted)] == ["error"]
    assert [entry.outcome for entry in entries if isinstance(entry, e.StepResolved)] == ["again"]
    assert [one.parent for one in harness.provider.created] == [None, "ex-1", "ex-1"]
    [first] = [entry.reserved for entry in entries if isinstance(entry, e.StepStarted)][:1]
    assert info.budget is not None
    assert first is not None
    assert info.budget["calls"]["spent"] == 2
    assert info.budget["tokens"]["spent"] > first["tokens"]
    assert info.budget["tokens"]["unknown"] is True
    assert info.budget["tokens"]["reserved"] == 0


async def test_where_the_id_was_known_the_exchange_is_charged_once_whoever_attaches_to_it() -> None:
    """Cut or killed, one creation is one call and its own tokens."""
    harness = ScriptedHarness(Ended(message=_said("hi"), cursor={"at": "ex-1"}, usage=Usage(input=7, output=5)))
    clerk = agent(harness, budget=hf.Budget(tokens=100_000, calls=10))

    def setup() -> None:
        harness.provider = ScriptedProvider()

    def charged_once(ended: hf.testing.Ended) -> None:
        doubts = sum(isinstance(entry, e.StepDoubted) for entry in ended.entries)
        started = [entry for entry in ended.entries if isinstance(entry, e.StepStarted)]
        assert len(started) == 1 + doubts
        assert len(harness.provider.created) <= 1 + doubts

    await every_crash(clerk, "hello", setup=setup, check=charged_once, allow_doubt=True)


async def test_what_can_be_looked_up_is_found_and_not_doubted() -> None:
    """A look comes before any other creation."""
    harness = _Lost("one", finds=True)
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        said, entries = await ended(runtime, clerk)
    assert said == "one"
    assert len(harness.provider.created) == 1
    assert not [entry for entry in entries if isinstance(entry, e.StepDoubted)]
    assert len(harness.attached) == 1


async def test_what_provably_was_not_created_is_created_once_its_time_is_over() -> None:
    """The doubt is ended by whoever knows; nothing is charged for what did not happen."""

    class Knowing(_Lost):
        async def open(self, start: Start) -> ScriptedSession:
            return _KnowingSession(self)

    class _KnowingSession(_LostSession):
        async def create(self, ask: Ask) -> Any:
            if self._harness.times:  # type: ignore[attr-defined]
                self._harness.times -= 1  # type: ignore[attr-defined]
                raise ModelCut("it never got there")
            async for event in super().create(ask):
                yield event

        async def find(self, ask: Ask) -> Any:
            return hf.NOT_DONE

    harness = Knowing("one")
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        said, entries = await ended(runtime, clerk, budget=hf.Budget(calls=5))
        info = await (await runtime.get((await runtime.runs(limit=1))[0].id)).info()
    assert said == "one"
    assert [entry.outcome for entry in entries if isinstance(entry, e.StepResolved)] == ["not_done"]
    assert len(harness.provider.created) == 1
    assert info.budget is not None
    assert info.budget["calls"]["spent"] == 1


@pytest.mark.parametrize("policy", ["raise", "wait"])
async def test_what_follows_a_doubt_is_the_harness_own_policy(policy: Any) -> None:
    """Where another creation would do harm, the turn fails, or a person is waited for."""
    harness = _Lost("one", in_doubt=policy)
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        run = await runtime.start(clerk, "hello")
        if policy == "raise":
            with pytest.raises(hf.RunError, match="may or may not have happened"):
                await run.result(timeout=LIMIT_SECONDS)
            assert len(harness.provider.created) == 1
            return
        async with asyncio.timeout(LIMIT_SECONDS):
            async for event in run.events():
                if isinstance(event, e.RunParked) and event.step is not None:
                    await run.resolve(event.step, "it said yes", by="ann")
                    break
        assert await run.result(timeout=LIMIT_SECONDS) == "it said yes"
    assert len(harness.provider.created) == 1


def _said(text: str) -> Message:
    return Message(ASSISTANT, (Text(text),))


@pytest.mark.parametrize(("how", "error"), [("limit", "HarnessLimit"), ("incomplete", "HarnessIncomplete")])
async def test_an_exchange_that_did_not_complete_fails_its_turn_and_the_next_goes_on_behind_it(
    how: Any, error: str
) -> None:
    """Reaching a cap is no completion; but what was said is kept, with its cursor."""
    harness = ScriptedHarness(Ended(message=_said("so far"), cursor={"at": "ex-1"}, how=how, why="10 turns"), told)
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        said, _ = await ended(runtime, clerk, "begin", conversation="chat")
        assert said == f"{error}: 10 turns"
        assert (await ended(runtime, clerk, "go on", conversation="chat"))[0] == "go on"
    assert [one.parent for one in harness.provider.created] == [None, "ex-1"]


async def test_what_an_exchange_that_left_nothing_was_told_is_told_again_with_the_next_turn() -> None:
    """Its words are not lost: the harness never heard them for good."""
    endings = [Ended(how="failed", why="it broke", usage=Usage(input=3, output=0)), "unused"]

    def line(ask: Ask) -> Any:
        return endings.pop(0) if len(endings) == 2 else told(ask)

    harness = ScriptedHarness(line)
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        said, entries = await ended(runtime, clerk, "one", conversation="chat", budget=hf.Budget(tokens=100_000))
        assert "HarnessFailed: it broke" in said
        assert (await ended(runtime, clerk, "two", conversation="chat"))[0] == "one | two"
    [failed] = [entry for entry in entries if isinstance(entry, e.StepFailed)]
    assert failed.usage == {"input": 3, "output": 0}


async def test_a_failure_that_is_worth_another_try_is_tried_behind_the_same_exchange() -> None:
    """What has failed there is over: it is not attached to again, but created anew."""
    said: list[Any] = [Ended(how="failed", why="overloaded"), "fine"]
    harness = ScriptedHarness(lambda ask: said.pop(0))
    again = hf.Retry(attempts=2, first=0.001, on=(hf.harness.HarnessFailed,))
    async with hf.testing.open(hf.App(clerk := agent(harness, retry=again))) as runtime:
        assert (await ended(runtime, clerk))[0] == "fine"
    assert [one.parent for one in harness.provider.created] == [None, None]


async def test_calls_that_hang_loose_are_answered_with_the_next_turn() -> None:
    """A turn that ended between a call and its result leaves no call open for the harness."""
    harness = ScriptedHarness(call("look", order="42"), ModelRefused("quota"), told)
    lines = harness.lines
    async with hf.testing.open(hf.App(clerk := agent(harness, tools=[look]))) as runtime:
        said, _ = await ended(runtime, clerk, "one", conversation="chat")
        assert "ModelRefused" in said
        harness.lines = (lines[0], told)
        assert (await ended(runtime, clerk, "two", conversation="chat"))[0] == "order 42: broken | two"


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (b"", "is corrupt"),
        (b"not json", "is corrupt"),
        (b'{"check":"0","stand":{"v":1,"cursor":{"at":"ex-1"}}}', "is corrupt: it does not match its checksum"),
        (None, "is corrupt: it is gone"),
    ],
)
async def test_a_cursor_that_is_damaged_fails_the_start_and_begins_nothing(
    tmp_path: Path, stored: bytes | None, why: str
) -> None:
    """Only where there never was a cursor does a conversation begin anew."""
    harness = ScriptedHarness("one", "two")
    store = tmp_path / "store.db"
    async with hf.testing.open(hf.App(clerk := agent(harness)), store=f"sqlite:///{store}") as runtime:
        await ended(runtime, clerk, conversation="chat")
    connection = apsw.Connection(str(store))
    connection.execute("UPDATE hf_conversations SET cursor = ?", (stored,))
    connection.close()
    async with hf.testing.open(hf.App(clerk), store=f"sqlite:///{store}") as runtime:
        said, _ = await ended(runtime, clerk, conversation="chat")
    assert said.startswith("CursorInvalid")
    assert why in said
    assert len(harness.provider.created) == 1


async def test_a_cursor_of_a_newer_harness_is_refused_and_one_of_an_older_is_told_its_version(tmp_path: Path) -> None:
    """What cannot be read is not guessed at."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    harness = ScriptedHarness("one", "two", "three")
    harness.version = 2
    async with hf.testing.open(hf.App(clerk := agent(harness)), store=store) as runtime:
        await ended(runtime, clerk, conversation="chat")
        harness.version = 1
        said, _ = await ended(runtime, clerk, conversation="chat")
        assert "is unreadable: it was written in version 2 of its form" in said
        harness.version = 3
        assert (await ended(runtime, clerk, conversation="chat"))[0] == "two"
    assert harness.starts[-1].version == 2


async def test_all_that_an_agent_has_holds_with_a_harness_too() -> None:
    """Output types, hooks, a word while it works, turn limits: the loop is the agent's own."""
    kept: list[int] = []

    @hf.tool(effect="repeat")
    async def slow(step: hf.Step[None]) -> str:
        """Take a while."""
        await steer(runtime._timed, step.run_id, "in blue")
        return "done"

    async def persist(outcome: Any) -> None:
        kept.append(outcome.result)

    harness = ScriptedHarness(call("slow"), told, "7")
    clerk = agent(harness, tools=[slow], output=int, hooks=Hooks(persist=persist), instructions="Count.")
    async with hf.testing.open(hf.App(clerk)) as runtime:
        said, _ = await ended(runtime, clerk)
    assert said == "7"
    assert kept == [7]
    heard = [told(ask) for ask in harness.asks]
    assert heard[1] == "done | in blue"
    assert len(heard) == 3
    assert harness.starts[0].output is not None
    endless = ScriptedHarness(call("look", order="1"))
    async with hf.testing.open(hf.App(clerk := agent(endless, tools=[look], turn_limit=3))) as runtime:
        said, _ = await ended(runtime, clerk)
    assert said.startswith("TurnLimit")
    assert len(endless.provider.created) == 3


async def test_what_an_agent_cannot_have_with_a_harness_is_refused_when_it_is_made() -> None:
    """A mistake is told before any run."""
    harness = ScriptedHarness("one")
    for options in ({}, {"harness": harness, "model": "openai:x"}, {"harness": "codex"}):
        with pytest.raises(hf.HoldfastError, match="harness"):
            hf.Agent("clerk", **options)
    with pytest.raises(hf.HoldfastError, match="compact_after"):
        hf.Agent("clerk", harness=harness, compact_after=100)
    with pytest.raises(hf.HoldfastError, match="workspace"):
        hf.Agent("clerk", model=hf.testing.ScriptedModel("x"), workspace=".")
    with pytest.raises(hf.HoldfastError, match="leave tools= out"):
        hf.Agent("clerk", harness=hf.harness.Remote("http://127.0.0.1:1", "helper"), tools=[look])


async def test_a_failed_turn_that_a_later_one_has_gone_on_behind_is_not_retried_into_a_fork() -> None:
    """Both would go on behind the same exchange: the retry is refused, and says what to do instead."""
    broken = [True]

    def line(ask: Ask) -> Any:
        return ModelRefused("quota") if broken[0] else told(ask)

    harness = ScriptedHarness("one", line)
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        await ended(runtime, clerk, conversation="chat")
        failed = await runtime.start(clerk, "two", conversation="chat")
        with pytest.raises(hf.RunError, match="quota"):
            await failed.result(timeout=LIMIT_SECONDS)
        broken[0] = False
        assert (await ended(runtime, clerk, "three", conversation="chat"))[0] == "two | three"
        with pytest.raises(hf.RunError, match="is outdated: a later turn of the conversation has gone on"):
            await (await failed.retry()).result(timeout=LIMIT_SECONDS)
        assert (await ended(runtime, clerk, "four", conversation="chat"))[0].endswith("four")
    assert [one.parent for one in harness.provider.created] == [None, "ex-1", "ex-2"]


async def test_a_failed_turn_that_nothing_follows_is_retried_behind_the_same_exchange() -> None:
    """A retry goes on where the turn stood."""
    broken = [True]
    harness = ScriptedHarness("one", lambda ask: ModelRefused("quota") if broken[0] else told(ask))
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        await ended(runtime, clerk, conversation="chat")
        failed = await runtime.start(clerk, "two", conversation="chat")
        with pytest.raises(hf.RunError, match="quota"):
            await failed.result(timeout=LIMIT_SECONDS)
        broken[0] = False
        assert await (await failed.retry()).result(timeout=LIMIT_SECONDS) == "two"
    assert [one.parent for one in harness.provider.created] == [None, "ex-1"]


async def test_an_error_behind_the_handle_is_looked_at_again_if_that_is_worth_it_and_never_begun_again() -> None:
    """Whatever a harness raises, what it began is there."""
    for on, wanted in (((ValueError,), "one two"), ((ModelBusy,), "ValueError: oops")):
        harness = _Stumbling("one two")
        again = hf.Retry(attempts=3, first=0.001, on=on)
        async with hf.testing.open(hf.App(clerk := agent(harness, retry=again))) as runtime:
            said, entries = await ended(runtime, clerk)
        assert said.endswith(wanted)
        assert len(harness.provider.created) == 1
        assert not [entry for entry in entries if isinstance(entry, e.StepDoubted)]


class _Stumbling(ScriptedHarness):
    """Fails once behind the handle, as a harness with a fault in it does."""

    failed = False

    async def open(self, start: Start) -> ScriptedSession:
        return _StumblingSession(self)


class _StumblingSession(ScriptedSession):
    async def _events(self, known: Any, after: int) -> Any:
        async for event in super()._events(known, after):
            if not self._harness.failed:  # type: ignore[attr-defined]
                self._harness.failed = True  # type: ignore[attr-defined]
                raise ValueError("oops")
            yield event


async def test_a_run_that_is_cancelled_before_the_handle_came_says_that_something_may_go_on() -> None:
    """Nobody can end what nobody can name."""
    asked = asyncio.Event()

    class Silent(ScriptedSession):
        async def create(self, ask: Ask) -> Any:
            asked.set()
            await asyncio.Event().wait()
            yield

    class Mute(ScriptedHarness):
        async def open(self, start: Start) -> ScriptedSession:
            return Silent(self)

    async with hf.open("memory://", hf.App(clerk := agent(Mute("x", keyed=True)))) as runtime:
        run = await runtime.start(clerk, "hello")
        async with asyncio.timeout(LIMIT_SECONDS):
            await asked.wait()
        await run.cancel("enough")
        with pytest.raises(hf.RunError, match="enough"):
            await run.result(timeout=LIMIT_SECONDS)
        entries = await entries_of(run)
    assert [entry.why for entry in entries if isinstance(entry, e.StepDoubted)] == ["cancelled"]


async def test_a_keyed_creation_is_sent_under_one_key_however_often_it_is_cut() -> None:
    """Under another key it would be another creation; a retry by a person has the same one."""
    harness = _Lost("one", keyed=True, times=4)
    async with hf.open("memory://", hf.App(clerk := agent(harness))) as runtime:
        run = await runtime.start(clerk, "hello")
        with pytest.raises(hf.RunError, match="the line went dead"):
            await run.result(timeout=LIMIT_SECONDS)
        assert await (await run.retry()).result(timeout=LIMIT_SECONDS) == "one"
    assert len(harness.asks) == 5
    assert len({ask.key for ask in harness.asks}) == 1
    assert len(harness.provider.created) == 1


@pytest.mark.parametrize("keyed", [False, True])
async def test_what_has_failed_elsewhere_is_begun_anew_by_whoever_retries_the_run(keyed: bool) -> None:
    """It is over: neither its handle nor its key would lead to anything but the same failure."""
    said: list[Any] = [Ended(how="failed", why="it broke"), "fine"]
    harness = ScriptedHarness(lambda ask: said.pop(0), keyed=keyed)
    async with hf.testing.open(hf.App(clerk := agent(harness))) as runtime:
        run = await runtime.start(clerk, "hello")
        with pytest.raises(hf.RunError, match="it broke"):
            await run.result(timeout=LIMIT_SECONDS)
        assert await (await run.retry()).result(timeout=LIMIT_SECONDS) == "fine"
    assert len({ask.key for ask in harness.asks}) == 2
    assert [one.parent for one in harness.provider.created] == [None, None]
