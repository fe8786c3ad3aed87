"""Graphs that the tests run on LangGraph's own runtime."""

import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send, interrupt


class Tally(TypedDict, total=False):
    """A state with channels of several kinds."""

    words: Annotated[list[str], operator.add]
    total: int
    asked: str


def thread(name: str = "talk", **more: Any) -> Any:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": name, **more}}


def said(number: int, size: int = 40) -> HumanMessage:
    """Return a message that is always the same."""
    return HumanMessage(f"message {number} ".ljust(size, "x"), id=f"h{number}")


def chat(saver: BaseCheckpointSaver[Any], *, window: int | None = None) -> Any:
    """Return a graph that answers each message, and forgets all but the last ones if there is a window."""

    def answer(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        reply = AIMessage(f"to {last.content}", id=f"a{str(last.id)[1:]}")
        old = state["messages"][: -window + 1] if window is not None else []
        return {"messages": [reply, *(RemoveMessage(str(message.id)) for message in old)]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


def crowd(saver: BaseCheckpointSaver[Any] | None) -> Any:
    """Return a graph that fans out, goes through a subgraph, asks a person, and ends."""

    def plan(state: Tally) -> dict[str, Any]:
        return {"words": ["planned"], "total": 1}

    def fan(state: Tally) -> Sequence[Send]:
        return [Send("work", {"asked": name}) for name in ("a", "b", "c")]

    def work(state: Tally) -> dict[str, Any]:
        return {"words": [f"worked {state['asked']}"]}

    def ask(state: Tally) -> dict[str, Any]:
        return {"words": [f"heard {interrupt({'words': len(state['words'])})}"]}

    def close(state: Tally) -> dict[str, Any]:
        return {"total": len(state["words"]), "words": ["closed"]}

    inner: Any = StateGraph(Tally)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    graph: Any = StateGraph(Tally)
    graph.add_node("plan", plan)
    graph.add_node("work", work)
    graph.add_node("inner", inner.compile())
    graph.add_node("close", close)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", fan, ["work"])
    graph.add_edge("work", "inner")
    graph.add_edge("inner", "close")
    graph.add_edge("close", END)
    return graph.compile(checkpointer=saver)


def _extend(state: list[str], writes: list[list[str]]) -> list[str]:
    return state + [word for write in writes for word in write]


class Counted(TypedDict):
    """A state whose words LangGraph counts up from writes."""

    words: Annotated[list[str], DeltaChannel(_extend, list, snapshot_frequency=5)]


def counting(saver: BaseCheckpointSaver[Any]) -> Any:
    """Return a graph over a channel of which only every fifth value is stored."""
    graph: Any = StateGraph(Counted)
    graph.add_node("echo", lambda state: {"words": [f"echo {len(state['words'])}"]})
    graph.add_edge(START, "echo")
    graph.add_edge("echo", END)
    return graph.compile(checkpointer=saver)


def past(graph: Any, config: Any) -> list[Any]:
    """Return all that a graph's history says, but for ids and times, which are never the same."""
    return [
        (state.values, state.next, {name: state.metadata.get(name) for name in ("source", "step")},
         [(task.name, task.path, task.error, task.interrupts and task.interrupts[0].value, task.result)
          for task in state.tasks])
        for state in graph.get_state_history(config)
    ]  # fmt: skip
