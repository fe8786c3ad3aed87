"""Of two who continue one thread at the same time, one is refused, whoever they are and wherever they run."""

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, MessagesState, StateGraph

from holdfast.core.errors import Conflict
from holdfast.integrations.langgraph import HoldfastSaver
from tests.integrations.langgraph.graphs import chat, said, thread


def interrupted_by(saver: HoldfastSaver, rival: Any) -> Any:
    """Return a graph in whose node somebody else takes a whole turn of the same thread."""

    def answer(state: MessagesState) -> dict[str, Any]:
        rival.invoke({"messages": [said(50)]}, thread(), durability="sync")
        return {"messages": [said(51)]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("turns", [0, 1])
def test_who_finds_a_thread_moved_on_is_refused_and_writes_nothing(kept: str, turns: int) -> None:
    """A new thread, or one that has been spoken on; the other's turn stands, and nobody's words are lost unheard."""
    with HoldfastSaver(kept) as ours, HoldfastSaver(kept) as theirs:
        for number in range(turns):
            chat(theirs).invoke({"messages": [said(number)]}, thread(), durability="sync")
        with pytest.raises(Conflict, match="thread 'talk' was continued elsewhere"):
            interrupted_by(ours, chat(theirs)).invoke({"messages": [said(49)]}, thread(), durability="sync")
        after = chat(ours).get_state(thread())
        assert [message.id for message in after.values["messages"]][-3:] == ["h49", "h50", "a50"]
        assert after.next == ()
        again = chat(ours).invoke({"messages": [said(60)]}, thread(), durability="sync")
        assert [message.id for message in again["messages"]][-2:] == ["h60", "a60"]


def test_two_calls_of_one_process_are_rivals_too(saver: HoldfastSaver) -> None:
    """A server that gets two messages of one thread at once has one saver."""
    with pytest.raises(Conflict, match="continued elsewhere"):
        interrupted_by(saver, chat(saver)).invoke({"messages": [said(49)]}, thread(), durability="sync")


async def test_of_many_who_begin_a_thread_one_does(saver: HoldfastSaver) -> None:
    """They all saw that there was none."""

    async def begin() -> str:
        assert await saver.aget_tuple(thread()) is None
        checkpoint = empty_checkpoint()
        await ready.wait()
        try:
            await saver.aput(thread(checkpoint_ns=""), checkpoint, {"source": "input", "step": -1}, {})
        except Conflict:
            return ""
        return checkpoint["id"]

    ready = asyncio.Barrier(6)
    [winner] = filter(None, await asyncio.gather(*(begin() for _ in range(6))))
    assert [each.checkpoint["id"] async for each in saver.alist(thread())] == [winner]


def test_an_id_that_would_stand_before_its_parent_is_refused(file_saver: HoldfastSaver) -> None:
    """A machine whose clock is behind would write what nobody finds."""
    file_saver.put(thread(checkpoint_ns=""), empty_checkpoint() | {"id": "2"}, {"source": "loop"}, {})
    latest = file_saver.get_tuple(thread())
    assert latest is not None
    with pytest.raises(Conflict, match="would stand before its parent"):
        file_saver.put(latest.config, empty_checkpoint() | {"id": "1"}, {"source": "loop"}, {})


def test_a_branch_from_the_past_is_no_rival(kept: str) -> None:
    """Who names a checkpoint means it, whatever came since, here or elsewhere."""
    with HoldfastSaver(kept) as ours, HoldfastSaver(kept) as theirs:
        for number in range(2):
            chat(ours).invoke({"messages": [said(number)]}, thread(), durability="sync")
        seen = chat(ours).get_state(thread()).config
        chat(theirs).invoke({"messages": [said(7)]}, thread(), durability="sync")
        branch = chat(ours).invoke({"messages": [said(8)]}, seen, durability="sync")
        assert [message.id for message in branch["messages"]] == ["h0", "a0", "h1", "a1", "h8", "a8"]


def test_who_is_overtaken_between_two_supersteps_is_refused(saver: HoldfastSaver) -> None:
    """The rival goes on from the very checkpoint that the first one has just put, and is the latest then."""
    with pytest.raises(Conflict, match="continued elsewhere"):
        interrupted_by(saver, chat(saver)).invoke({"messages": [said(49)]}, thread(), durability="async")
    assert saver.get_tuple(thread()) is not None
