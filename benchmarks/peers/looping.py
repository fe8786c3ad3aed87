"""LangGraph's graph of one looping node, whatever it is saved by."""

import uuid
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from benchmarks.workload import Gate


class State(TypedDict):
    """The last result only: LangGraph writes the whole state at every step, so this is its cheapest conversation."""

    done: int
    result: str


class Looping:
    """A graph whose single node is the step. `done` counts from before the gate, so it is one ahead of the gate's."""

    def __init__(self, payload: str) -> None:
        self.payload = payload
        self.gate: Gate | None = None

    async def step(self, state: State) -> State:
        if state["done"] == 1 and self.gate is not None:
            await self.gate.arrive()
        return {"done": state["done"] + 1, "result": self.payload}

    def step_in_thread(self, state: State) -> State:
        if state["done"] == 1 and self.gate is not None:
            self.gate.arrive_in_thread()
        return {"done": state["done"] + 1, "result": self.payload}

    def next(self, state: State) -> str:
        if self.gate is None:
            return END
        return "step" if state["done"] == 1 or self.gate.more(state["done"] - 1) else END

    def compile(self, node: Any, saver: Any) -> Any:
        graph = StateGraph(State)
        graph.add_node("step", node)
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", self.next, ["step", END])
        return graph.compile(checkpointer=saver)


def config() -> dict[str, Any]:
    """Return what names a new conversation."""
    return {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 10_000_000}
