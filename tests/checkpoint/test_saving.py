"""What a loop saved is what it finds again, whatever it did to its messages meanwhile."""

import contextlib
import copy
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import checkpoint
from holdfast.core import limits
from holdfast.core.errors import InvalidInput, InvalidValue, Misuse, PayloadTooLarge
from holdfast.store.memory import MemoryStore
from tests.checkpoint.leaving import Place, shut_down

pytestmark = pytest.mark.anyio
FIRST: dict[str, Any] = {"role": "user", "content": "Where is my order?"}


async def left(place: Place, messages: list[Any], **where: Any) -> None:
    """Save and be shut down."""
    async with shut_down("ticket-42", store=place) as saved:
        await saved.save(messages, **where)


async def found(place: Place) -> list[Any] | None:
    """Return what is there, and leave it there."""
    messages: list[Any] | None = None
    async with shut_down("ticket-42", store=place) as saved:
        messages = await saved.load()
    return messages


async def entries(place: Place, run: str | None) -> list[Any]:
    """Return the facts of a run."""
    assert run is not None
    async with hf.open(place, work=False) as runtime:
        return [event async for event in (await runtime.get(run)).events(follow=False)]


async def test_a_loop_finds_what_it_saved(place: Place) -> None:
    """The messages, the iteration and the phase are there after a shutdown, and the attempt is counted."""
    assert await found(place) is None
    await left(place, [FIRST, {"role": "assistant", "content": "Let me look."}], iteration=3, phase="tools")
    async with shut_down("ticket-42", store=place) as saved:
        assert await saved.load() == [FIRST, {"role": "assistant", "content": "Let me look."}]
        assert (saved.iteration, saved.phase, saved.attempt) == (3, "tools", 3)


async def test_messages_that_were_edited_cut_or_summed_up_come_back_so(place: Place) -> None:
    """A save is the list as it is, whatever it was before."""
    messages: list[Any] = [FIRST, {"n": 1}, {"n": 2}, {"n": 3}]
    await left(place, messages)
    summed_up = [{"content": "It is Tuesday."}, {"summary": "1 to 3"}, {"n": 4}]
    states: list[list[Any]] = [
        [{"content": "It is Tuesday."}, *messages[1:]],
        [{"content": "It is Tuesday."}, *messages[1:], {"n": 4}],
        summed_up,
        summed_up[:1],
        [],
        [{"n": 5}, {"text": "x" * (limits.INLINE_BYTES + 1)}],
    ]
    for state in states:
        await left(place, state)
        assert await found(place) == state


async def test_a_message_that_is_changed_in_place_is_saved_changed(place: Place) -> None:
    """The loop's own objects are not what is compared with, nor what `load` gave."""
    messages: list[Any] = [copy.deepcopy(FIRST)]
    await left(place, messages)
    async with shut_down("ticket-42", store=place) as saved:
        messages = await saved.load() or []
        for words in ("changed", "changed again"):
            messages[0]["content"] = words
            await saved.save(messages)
        messages[0]["content"] = "never saved"
    assert await found(place) == [{"role": "user", "content": "changed again"}]


async def test_only_what_changed_is_written(place: Place) -> None:
    """A first message that is another each time does not write the rest again, and the same state nothing at all."""
    messages: list[Any] = [{"time": 0}, *({"n": n} for n in range(20))]
    async with checkpoint.open("ticket-42", store=place) as saved:
        run = saved.run
        await saved.save(messages)
        await saved.save([{"time": 1}, *messages[1:], {"n": 20}])
        assert await saved.save([{"time": 1}, *messages[1:], {"n": 20}])
    saves = [event for event in await entries(place, run) if isinstance(event, hf.events.CheckpointSaved)]
    assert [save.count for save in saves] == [21, 22]
    assert saves[1].value == [[0, 1, [{"time": 1}]], [21, 0, [{"n": 20}]]]


EDITS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(0, 3)), max_size=6)


@given(st.lists(EDITS, max_size=5))
@settings(max_examples=25)
async def test_any_edits_come_back(rounds: list[list[tuple[int, int, int]]]) -> None:
    """What was saved last is what is there, after any additions, replacements, cuts and insertions."""
    store, messages = MemoryStore(), list[Any]()
    for edits in rounds:
        async with checkpoint.open("loop", store=store) as saved:
            for kind, place, value in edits:
                match kind:
                    case 0:
                        messages.append({"v": value})
                    case 1:
                        messages[place : place + 1] = [{"v": value}]
                    case 2:
                        del messages[place : place + value]
                    case _:
                        messages.insert(place, {"v": [value]})
                await saved.save(messages)
                assert await saved.load() == messages


async def test_a_transcript_larger_than_any_payload_is_kept(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written in parts, at once; a single message that is too large is refused by its place."""
    monkeypatch.setattr(limits, "PAYLOAD_BYTES", 20_000)
    monkeypatch.setattr(limits, "INLINE_BYTES", 1_000)
    messages = [{"n": n, "text": "x" * 900} for n in range(100)]
    await left(file, messages)
    assert await found(file) == messages
    async with checkpoint.open("ticket-42", store=file) as saved:
        with pytest.raises(PayloadTooLarge, match=r"messages\[100\]"):
            await saved.save([*messages, {"text": "x" * 20_000}])
        assert await saved.load() == messages


class Turn(pydantic.BaseModel):
    """A message of somebody's own type."""

    role: str
    text: str


class Word(msgspec.Struct):
    """Another."""

    text: str


@pytest.mark.parametrize(
    "message", [Turn(role="user", text="hi"), Word("hi"), ("a", "tuple"), {1: "a key"}, {"x": {1}}]
)
async def test_what_would_come_back_as_something_else_is_refused(message: Any) -> None:
    """At once, by its place, and with what to do; what was saved before is untouched."""
    async with checkpoint.open("ticket-42", store=MemoryStore()) as saved:
        await saved.save([FIRST])
        with pytest.raises(InvalidValue, match=r"messages\[1\]") as refused:
            await saved.save([FIRST, message])
        assert "model_dump" in refused.value.hint
        assert await saved.load() == [FIRST]


@pytest.mark.parametrize(("of", "message"), [(Turn, Turn(role="user", text="hi")), (Word, Word("hi"))])
async def test_messages_of_a_type_that_is_named_come_back_as_that(of: type[Any], message: Any) -> None:
    """The same type, live and resumed."""
    store = MemoryStore()
    async with shut_down("ticket-42", store=store, of=of, by=KeyboardInterrupt()) as saved:
        await saved.save([message])
    async with checkpoint.open("ticket-42", store=store, of=of) as saved:
        assert await saved.load() == [message]


async def test_each_id_has_lives_of_its_own(place: Place) -> None:
    """A checkpoint that has ended is over: its id starts afresh, and other ids know nothing of it."""
    for life in range(5):
        async with checkpoint.open(("ticket", 42), store=place) as saved:
            assert (await saved.load(), saved.attempt) == (None, 1)
            await saved.save([{"life": life}])
            async with checkpoint.open("ticket/43", store=place) as other:
                assert await other.load() is None
                await other.fail("no")
    assert list(await checkpoint.interrupted(store=place)) == []


async def test_the_key_of_something_else_is_no_checkpoint(file: str) -> None:
    """A run that has taken the very key is named, and not touched."""

    @hf.durable
    async def other(ctx: hf.Context) -> None:
        return None

    async with hf.open(file, hf.App(other)) as runtime:
        run = await runtime.start(other, key="holdfast:checkpoint/ticket-42/1")
        await run.result(timeout=20)
        with pytest.raises(hf.Conflict, match=run.id):
            async with checkpoint.open("ticket-42", store=file):
                pass


@pytest.mark.parametrize("wrong", ["", "x" * 600, 7, None, (), ("a", "")])
async def test_an_id_that_cannot_be_kept_is_refused(wrong: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(InvalidInput):
        checkpoint.open(wrong)


async def test_what_is_over_takes_no_more(file: str) -> None:
    """A checkpoint that was completed or left is not written to, and its opening is not used twice."""
    opening = checkpoint.open("ticket-42", store=file)
    async with opening as saved:
        await saved.complete({"answer": 42})
        with pytest.raises(Misuse, match="closed"):
            await saved.save([FIRST])
    with pytest.raises(Misuse, match="closed"):
        await saved.flush()
    with pytest.raises(Misuse, match="opened before"):
        await opening.__aenter__()
    async with hf.open(file, work=False) as runtime:
        info = await (await runtime.get(saved.run)).info()
        assert (info.status, info.result) == ("completed", {"answer": 42})


async def test_no_store_keeps_nothing_and_the_loop_need_not_know() -> None:
    """Every verb is there and does nothing, but for an effect, which is performed."""
    async with checkpoint.open("ticket-42", store=None) as saved:
        assert await saved.load() is None
        assert await saved.save([FIRST, object()], 1, "tools") is False
        await saved.flush()
        assert [await saved.effect("mail", str, 42), await saved.effect("mail", str, 43)] == ["42", "43"]
        assert (saved.run, saved.attempt, saved.iteration, saved.phase, dict(saved.doubts)) == (None, 1, None, None, {})
        await saved.complete()
    assert await checkpoint.interrupted(store=None) == []


def test_plain_code_has_the_same_verbs(file: str) -> None:
    """Each waits; the block is left by the same rule."""
    opening = checkpoint.open("ticket-42", store=file, labels={"team": "mail"})
    with contextlib.suppress(KeyboardInterrupt), opening as saved:
        assert saved.load() is None
        assert saved.save([FIRST], 1, "model")
        saved.flush()
        assert [saved.effect("mail", str, 42), saved.effect("mail", str, 42)] == ["42", "42"]
        with pytest.raises(Misuse, match="plain"):
            saved.effect("other", found, file)  # type: ignore[unused-coroutine]
        raise KeyboardInterrupt
    [interrupted] = checkpoint.interrupted(store=file, labels={"team": "mail"})
    assert (interrupted.id, interrupted.attempts, interrupted.iteration) == ("ticket-42", 1, 1)
    assert interrupted.reason == "interrupted: KeyboardInterrupt"
    with checkpoint.open("ticket-42", store=file) as saved:
        assert (saved.load(), saved.id, saved.attempt, saved.phase) == ([FIRST], "ticket-42", 2, "model")
        assert dict(saved.doubts) == {}
        saved.complete()
    assert list(checkpoint.interrupted(store=file)) == []


async def test_plain_code_is_refused_where_it_would_block_an_event_loop(file: str) -> None:
    """Both say what to use instead."""
    with pytest.raises(Misuse, match="async with"), checkpoint.open("ticket-42", store=file):
        pass
    with pytest.raises(Misuse, match="await"):
        list(checkpoint.interrupted(store=file))
