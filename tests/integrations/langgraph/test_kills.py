"""A graph that is killed anywhere goes on from its last checkpoint, to the state of an unbroken run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.testing.killer import AtPoint, Killer
from tests.integrations.langgraph.graphs import crowd, past, thread

SEAM = "holdfast.store.point:reached"
STRIDE = 6
"""How many points lie between two deaths."""


def drive(path: str) -> Any:
    """Do so in a file."""
    with HoldfastSaver(f"sqlite:///{path}") as saver:
        return finished(crowd(saver))


def finished(graph: Any) -> Any:
    """Bring a graph to its end from wherever it is, and return what it came to."""
    config = thread()
    while True:
        state = graph.get_state(config)
        if state.interrupts:
            graph.invoke(Command(resume="yes"), config, durability="sync")
        elif "closed" in state.values.get("words", ()) and not state.tasks:
            return state.values, len(past(graph, config))
        else:
            # What LangGraph calls next leaves out tasks that are done and not yet taken into a checkpoint.
            graph.invoke(None if state.created_at else {"words": ["begun"]}, config, durability="sync")


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """Forks of a process that has LangGraph loaded."""
    with Killer(preload=[__name__], seam=SEAM, timeout_seconds=60) as killer:
        yield killer


@pytest.mark.parametrize("first", [1, 2])
def test_a_graph_killed_around_its_writes_comes_to_the_same_end(killer: Killer, tmp_path: Path, first: int) -> None:
    """Before or after transactions: of checkpoints, of writes by parallel tasks, of a subgraph, and of an answer."""
    unbroken = finished(crowd(InMemorySaver()))
    deaths, nth = 0, first
    while True:
        path = str(tmp_path / f"{nth}.db")
        if not killer.run(drive, path, die=AtPoint(nth)).killed:
            break  # it came to its end before
        assert killer.run(drive, path).result() == unbroken, f"killed at point {nth}"
        deaths, nth = deaths + 1, nth + STRIDE
    assert deaths >= 4
