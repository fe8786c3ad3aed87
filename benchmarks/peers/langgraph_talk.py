"""The same conversation with LangGraph: one thread, messages as its state, and a saver of its own or Holdfast's."""

import argparse
import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.workload import MARKER, stored_bytes


def filler(number: int, message_bytes: int) -> str:
    """Return a text of that many bytes, unlike every other."""
    return f"message {number} ".ljust(message_bytes, "x")


@contextlib.contextmanager
def own(directory: Path) -> Iterator[Any]:
    """Open LangGraph's saver on SQLite."""
    from langgraph.checkpoint.sqlite import SqliteSaver  # lazy: each is installed in an environment of its own

    connection = sqlite3.connect(directory / "langgraph.db", check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    with contextlib.closing(connection):
        yield SqliteSaver(connection)


@contextlib.contextmanager
def holdfast(directory: Path) -> Iterator[Any]:
    """Open Holdfast's."""
    from holdfast.integrations.langgraph import HoldfastSaver  # lazy: each is installed in an environment of its own

    with HoldfastSaver(f"sqlite:///{directory / 'holdfast.db'}") as saver:
        yield saver


SAVERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Any]]] = {"own": own, "holdfast": holdfast}


def talk(saver: str, directory: Path, turns: int, message_bytes: int) -> dict[str, float]:
    """Hold the conversation, weigh its closed store, and return processor seconds per turn at its ends."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(filler(len(state["messages"]), message_bytes))]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    costs: list[float] = []
    with SAVERS[saver](directory) as opened:
        compiled = graph.compile(checkpointer=opened)
        for turn in range(turns):
            began = time.process_time()
            compiled.invoke(
                {"messages": [HumanMessage(filler(turn, message_bytes))]},
                {"configurable": {"thread_id": "talk"}},
                durability="sync",
            )
            costs.append(time.process_time() - began)
    return {"bytes": stored_bytes(directory), "early": _median(costs[:50]), "late": _median(costs[-50:])}


def _median(costs: list[float]) -> float:
    return sorted(costs)[len(costs) // 2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--saver", choices=sorted(SAVERS), default="own")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    given = parser.parse_args()
    print(MARKER + json.dumps(talk(given.saver, given.directory, given.turns, given.bytes)), flush=True)
