"""What the OpenAI Agents SDK relies on in a session: the same of its own in SQLite and of ours, on every store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner, Session, SessionSettings, SQLiteSession
from agents.run import RunConfig
from agents.testing import ScriptedModel, assistant_message

import holdfast as hf
from holdfast.integrations.openai_agents import HoldfastSession, session_change
from holdfast.testing.killer import Killer
from tests.integrations.ledger import Ledger
from tests.integrations.sdk_clerk import add, pop

LIMIT_SECONDS = 20.0
Make = Callable[..., Any]
"""Makes a session by its id, each time another object for the same store."""


@asynccontextmanager
async def theirs(file: Path) -> AsyncIterator[Make]:
    """Give sessions of the SDK's own."""
    made: list[SQLiteSession] = []

    def make(session_id: str, **options: Any) -> SQLiteSession:
        made.append(SQLiteSession(session_id, file, **options))
        return made[-1]

    try:
        yield make
    finally:
        for session in made:
            session.close()


@asynccontextmanager
async def ours(address: str) -> AsyncIterator[Make]:
    """Give sessions of ours."""
    async with hf.open(address, hf.App(session_change)) as runtime:
        yield lambda session_id, **options: HoldfastSession(session_id, runtime, **options)


@pytest.fixture(params=["theirs", "memory", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[Make]:
    """Where sessions are kept."""
    match request.param:
        case "theirs":
            return theirs(tmp_path / "theirs.db")
        case "memory":
            return ours("memory://")
        case "sqlite":
            return ours(f"sqlite:///{tmp_path / 'store.db'}")
        case _:
            return ours(request.getfixturevalue("postgres_store"))


@pytest.fixture
async def make(place: AbstractAsyncContextManager[Make]) -> AsyncIterator[Make]:
    """Make sessions there."""
    async with place as make:
        yield make


def said(*texts: str) -> list[Any]:
    """Return what a user said."""
    return [{"role": "user", "content": text} for text in texts]


async def test_a_session_is_empty_until_something_is_added(make: Make) -> None:
    """Nothing is there to get or to pop, and nothing is added by an empty list."""
    session = make("ann")
    assert isinstance(session, Session)
    assert session.session_id == "ann"
    await session.add_items([])
    assert await session.get_items() == []
    assert await session.pop_item() is None
    assert await session.get_items() == []


async def test_items_come_back_as_they_were_and_in_their_order(make: Make) -> None:
    """Every kind of data in them, over several calls, for whoever opens the session again."""
    session = make("ann")
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"order": "42"}', "id": None}
    output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "é€😀\n"}]}
    await session.add_items([*said("hello"), call])
    await session.add_items([output, {"n": [1, 2.5, True, None, {"deep": {"er": []}}]}])
    expected = [*said("hello"), call, output, {"n": [1, 2.5, True, None, {"deep": {"er": []}}]}]
    assert await session.get_items() == expected
    assert await make("ann").get_items() == expected


async def test_a_limit_leaves_the_latest_in_their_order(make: Make) -> None:
    """The argument counts before the settings; none at all, or a negative one, is no limit."""
    session = make("ann")
    await session.add_items(said("1", "2", "3", "4"))
    assert await session.get_items(2) == said("3", "4")
    assert await session.get_items(9) == said("1", "2", "3", "4")
    assert await session.get_items(0) == []
    assert await session.get_items(-1) == said("1", "2", "3", "4")
    narrow = make("ann", session_settings=SessionSettings(limit=1))
    assert await narrow.get_items() == said("4")
    assert await narrow.get_items(3) == said("2", "3", "4")
    assert await make("ann", session_settings={"limit": 2}).get_items() == said("3", "4")


async def test_pop_takes_the_latest_item_away(make: Make) -> None:
    """One at a time, from the end, until there is none; what is added then stands alone."""
    session = make("ann")
    await session.add_items(said("1", "2", "3"))
    assert await session.pop_item() == said("3")[0]
    assert await session.get_items() == said("1", "2")
    assert [await session.pop_item() for _ in range(3)] == [said("2")[0], said("1")[0], None]
    await session.add_items(said("4"))
    assert await session.get_items() == said("4")


async def test_clearing_forgets_everything_and_may_be_done_at_any_time(make: Make) -> None:
    """An empty session, too; other sessions keep what they have."""
    session, other = make("ann"), make("bob")
    await session.clear_session()
    await session.add_items(said("1"))
    await other.add_items(said("2"))
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    assert await other.get_items() == said("2")
    await session.add_items(said("3"))
    assert await session.get_items() == said("3")


async def test_what_a_session_gave_may_be_altered_without_altering_the_session(make: Make) -> None:
    """The SDK edits the items that it is given."""
    session = make("ann")
    await session.add_items(said("1"))
    got = await session.get_items()
    got[0]["content"] = "altered"
    got.append(said("2")[0])
    assert await session.get_items() == said("1")


async def test_those_who_use_a_session_at_once_lose_nothing_and_take_nothing_twice(make: Make) -> None:
    """What is added in one call stays together, each adder's items are in order, and each pop takes another item."""
    sessions = [make("ann") for _ in range(3)]

    async def add_all(name: int) -> None:
        for number in range(4):
            await sessions[name].add_items(said(f"{name} {number} a", f"{name} {number} b"))

    await asyncio.gather(*(add_all(name) for name in range(3)))
    texts = [item["content"] for item in await make("ann").get_items()]
    assert len(texts) == 24
    assert all(first[:-1] == second[:-1] for first, second in zip(texts[::2], texts[1::2], strict=True))
    for name in "012":
        own = [text for text in texts if text.startswith(name)]
        assert own == sorted(own)
    popped = await asyncio.gather(*(sessions[number % 3].pop_item() for number in range(10)))
    assert sorted(item["content"] for item in popped) == sorted(texts[-10:])
    assert [item["content"] for item in await make("ann").get_items()] == texts[:-10]


async def test_the_runner_keeps_a_conversation_in_it(make: Make) -> None:
    """The second run is asked with what the first one heard and said."""
    model = ScriptedModel([[assistant_message("hello ann")], [assistant_message("you are ann")]])
    agent, quiet = Agent(name="clerk", model=model), RunConfig(tracing_disabled=True)
    await Runner.run(agent, "I am ann", session=make("ann"), run_config=quiet)
    await Runner.run(agent, "who am I?", session=make("ann"), run_config=quiet)
    assert model.last_call is not None
    asked: Any = model.last_call.input
    assert [item.get("role") for item in asked] == ["user", "assistant", "user"]
    assert len(await make("ann").get_items()) == 4


async def test_two_processes_have_one_order_and_what_was_acknowledged_survives_a_kill(
    address: str, sdk_killer: Killer, tmp_path: Path
) -> None:
    """A process adds until it is killed, beside another: all that it was told of is there, once and in order."""
    ledger, own = tmp_path / "ledger", [f"own {number}" for number in range(8)]
    dying = asyncio.create_task(asyncio.to_thread(sdk_killer.run, add, address, str(ledger), "die", 6))
    async with ours(address) as make:
        session = make("shared")
        for text in own:
            await session.add_items(said(text))
        ended = await dying
        texts = [item["content"] for item in await session.get_items()]
    assert ended.killed
    assert [text for text in texts if text.startswith("own")] == own
    acknowledged = Ledger(ledger).read()
    others = [text for text in texts if text.startswith("die")]
    assert len(acknowledged) == 4
    assert others[: len(acknowledged)] == acknowledged
    assert len(others) <= len(acknowledged) + 1
    popped = [item["content"] for item in sdk_killer.run(pop, address, 3).result()]
    assert popped == texts[:-4:-1]
