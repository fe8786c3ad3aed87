"""Graphs on LangGraph's own runtime find in a Holdfast store exactly what they would find in its memory."""

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from holdfast.integrations.langgraph import HoldfastSaver
from tests.integrations.langgraph.graphs import chat, counting, crowd, past, said, thread


def crowded(graph: Any) -> list[Any]:
    """Run the crowd to its question, answer it, and say what its history tells."""
    config = thread()
    graph.invoke({"words": ["begun"]}, config, durability="sync")
    graph.invoke(Command(resume="yes"), config, durability="sync")
    return past(graph, config)


def test_the_history_of_a_graph_is_what_memory_would_hold(saver: HoldfastSaver) -> None:
    """Fan-out, a subgraph, an interrupt and its answer: values, tasks, errors and steps of every checkpoint."""
    assert crowded(crowd(saver)) == crowded(crowd(InMemorySaver()))


async def test_plain_and_async_callers_share_a_thread(saver: HoldfastSaver) -> None:
    """One saver serves both, from any thread and any loop."""
    graph = chat(saver)
    for number in range(4):
        if number % 2:
            await graph.ainvoke({"messages": [said(number)]}, thread(), durability="sync")
        else:
            await asyncio.to_thread(graph.invoke, {"messages": [said(number)]}, thread(), durability="sync")
    states = [state async for state in graph.aget_state_history(thread())]
    assert [len(state.values["messages"]) for state in states] == [8, 7, 6, 6, 5, 4, 4, 3, 2, 2, 1, 0]
    assert states[0].values["messages"][-1] == AIMessage("to " + str(said(3).content), id="a3")


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_conversation_goes_on_with_another_saver(kept: str, durability: str) -> None:
    """What one stored another finds, whichever way LangGraph was told to write."""
    with HoldfastSaver(kept) as first:
        chat(first).invoke({"messages": [said(1)]}, thread(), durability=durability)
    with HoldfastSaver(kept) as second:
        result = chat(second).invoke({"messages": [said(2)]}, thread(), durability=durability)
    assert [message.id for message in result["messages"]] == ["h1", "a1", "h2", "a2"]


def test_a_window_of_messages_is_read_back_at_every_checkpoint(file_saver: HoldfastSaver) -> None:
    """A list that loses its head and grows at its end is stored as what it adds, and comes back whole."""
    own, ours = chat(InMemorySaver(), window=6), chat(file_saver, window=6)
    for number in range(12):
        for graph in (own, ours):
            graph.invoke({"messages": [said(number, 300)]}, thread(), durability="sync")
    assert past(ours, thread()) == past(own, thread())


def test_a_thread_goes_on_from_any_checkpoint_of_its_past(saver: HoldfastSaver) -> None:
    """A branch keeps what came before it; what came after stays readable, and is not in it."""
    graph = chat(saver)
    for number in range(3):
        graph.invoke({"messages": [said(number)]}, thread(), durability="sync")
    after_first = next(s for s in graph.get_state_history(thread()) if len(s.values["messages"]) == 2 and not s.next)
    old = [state.values for state in graph.get_state_history(thread())]
    branch = graph.invoke({"messages": [said(9)]}, after_first.config, durability="sync")
    assert [message.id for message in branch["messages"]] == ["h0", "a0", "h9", "a9"]
    assert [state.values for state in graph.get_state_history(thread())][-len(old) :] == old
    edited = graph.update_state(after_first.config, {"messages": [AIMessage("other", id="a0")]})
    assert [message.content for message in graph.get_state(edited).values["messages"]][1] == "other"
    assert graph.get_state(after_first.config).values["messages"][1].content == "to " + str(said(0).content)


def test_a_channel_that_is_counted_up_from_writes_is_counted_right(saver: HoldfastSaver) -> None:
    """LangGraph's delta channel stores few values, and asks the saver for the writes since."""
    own, ours = counting(InMemorySaver()), counting(saver)
    for number in range(7):
        for graph in (own, ours):
            graph.invoke({"words": [f"word {number}"]}, thread(), durability="sync")
    assert past(ours, thread()) == past(own, thread())
    assert len(ours.get_state(thread()).values["words"]) == 14


def test_checkpoints_of_all_threads_are_listed_the_newest_first(saver: HoldfastSaver) -> None:
    """By metadata, before another, and no more than asked for."""
    graph = chat(saver)
    for name in ("one", "two", "one"):
        graph.invoke({"messages": [said(1)]}, thread(name), durability="sync")
    every = list(saver.list(None))
    ids = [each.checkpoint["id"] for each in every]
    assert ids == sorted(ids, reverse=True)
    assert [each.config["configurable"]["thread_id"] for each in every] == ["one"] * 3 + ["two"] * 3 + ["one"] * 3
    assert len(list(saver.list(thread("one"), filter={"source": "input"}, limit=1))) == 1
    assert [each.checkpoint["id"] for each in saver.list(None, before=every[2].config, limit=2)] == ids[3:5]


def test_tenants_do_not_see_each_other(kept: str) -> None:
    """The same thread of two tenants is two threads."""
    with HoldfastSaver(kept, tenant="one") as one, HoldfastSaver(kept, tenant="two") as two:
        chat(one).invoke({"messages": [said(1)]}, thread(), durability="sync")
        assert two.get_tuple(thread()) is None
        assert list(two.list(None)) == []
        two.delete_thread("talk")
        assert one.get_tuple(thread()) is not None


def test_writes_come_back_in_the_order_in_which_they_are_applied(saver: HoldfastSaver) -> None:
    """By the task's path, the task, and their place; written again, the first stands, but for special ones."""
    at = thread(checkpoint_ns="", checkpoint_id="1")
    saver.put(thread(checkpoint_ns=""), empty_checkpoint() | {"id": "1"}, {"source": "loop"}, {})
    saver.put_writes(at, [("a", 1), ("b", 2)], "task-a", "~2")
    saver.put_writes(at, [("a", 3)], "task-b", "~1")
    saver.put_writes(at, [("a", 4)], "task-b", "~1")
    saver.put_writes(at, [("__error__", "first")], "task-c", "~0")
    saver.put_writes(at, [("__error__", "second")], "task-c", "~0")
    found = saver.get_tuple(at)
    assert found is not None
    assert found.pending_writes == [
        ("task-c", "__error__", "second"), ("task-b", "a", 3), ("task-a", "a", 1), ("task-a", "b", 2),
    ]  # fmt: skip
