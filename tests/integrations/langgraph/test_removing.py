"""What is removed is gone, and what stays is whole."""

from pathlib import Path
from typing import Any

import apsw
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from holdfast.core.errors import Conflict, InvalidInput
from holdfast.integrations.langgraph import HoldfastSaver
from tests.integrations.langgraph.graphs import chat, counting, crowd, past, said, thread


def counts(path: Path) -> tuple[int, int]:
    """Return how many shelves and items a file has."""
    connection = apsw.Connection(str(path))
    try:
        [found] = connection.execute("SELECT (SELECT count(*) FROM hf_shelves), (SELECT count(*) FROM hf_items)")
        return int(found[0]), int(found[1])
    finally:
        connection.close()


def test_a_deleted_thread_leaves_nothing(tmp_path: Path) -> None:
    """No row of it, of its subgraphs, or of the runs that wrote it."""
    path = tmp_path / "a.db"
    with HoldfastSaver(f"sqlite:///{path}") as saver:
        crowd(saver).invoke({"words": ["begun"]}, thread() | {"metadata": {"run_id": "run-1"}}, durability="sync")
    assert counts(path) != (0, 0)
    with HoldfastSaver(f"sqlite:///{path}") as saver:
        saver.delete_thread("talk")
        assert saver.get_tuple(thread()) is None
        saver.delete_for_runs(["run-1"])
    assert counts(path) == (0, 0)


def test_a_pruned_thread_goes_on_from_its_latest_checkpoint(kept: str) -> None:
    """All that was said is still there, for one who did not see the past."""
    with HoldfastSaver(kept) as saver:
        for number in range(5):
            chat(saver).invoke({"messages": [said(number, 300)]}, thread(), durability="sync")
        before = chat(saver).get_state(thread())
        saver.prune(["talk"])
    with HoldfastSaver(kept) as saver:
        assert [each.config for each in chat(saver).get_state_history(thread())] == [before.config]
        assert chat(saver).get_state(thread()).values == before.values
        result = chat(saver).invoke({"messages": [said(9)]}, thread(), durability="sync")
        assert [message.id for message in result["messages"]] == [
            f"{who}{n}" for n in (0, 1, 2, 3, 4, 9) for who in "ha"
        ]


def test_pruning_frees_what_only_the_past_was_made_of(tmp_path: Path) -> None:
    """Of a window of messages that slid over eighty, no more rows are left than a value is spread over at most."""
    path = tmp_path / "a.db"
    with HoldfastSaver(f"sqlite:///{path}") as saver:
        for number in range(40):
            chat(saver, window=4).invoke({"messages": [said(number, 300)]}, thread(), durability="sync")
    assert counts(path)[1] > 300
    with HoldfastSaver(f"sqlite:///{path}") as saver:
        saver.prune(["talk"])
    assert counts(path)[1] < 30


def test_a_pruned_thread_keeps_what_its_latest_checkpoint_is_counted_up_from(saver: HoldfastSaver) -> None:
    """A delta channel between two of its stored values would otherwise come back empty."""
    graph = counting(saver)
    for number in range(4):
        graph.invoke({"words": [f"word {number}"]}, thread(), durability="sync")
    before, size = graph.get_state(thread()).values, len(list(saver.list(thread())))
    saver.prune(["talk"])
    assert graph.get_state(thread()).values == before
    assert len(list(saver.list(thread()))) < size
    assert len(graph.invoke({"words": ["more"]}, thread(), durability="sync")["words"]) == len(before["words"]) + 2


def test_values_that_a_later_checkpoint_builds_on_outlive_the_run_that_wrote_them(file_saver: HoldfastSaver) -> None:
    """A run's checkpoints go; the messages that others still have do not."""
    graph = chat(file_saver)
    for number in range(3):
        config = thread() | {"metadata": {"run_id": f"run-{number}"}}
        graph.invoke({"messages": [said(number, 300)]}, config, durability="sync")
    file_saver._reader.bodies._held.clear()
    before = graph.get_state(thread()).values
    file_saver.delete_for_runs(["run-0", "run-1"])
    file_saver._reader.bodies._held.clear()
    assert graph.get_state(thread()).values == before
    assert {each.metadata["run_id"] for each in file_saver.list(thread())} == {"run-2"}


def test_a_copy_goes_its_own_way(saver: HoldfastSaver) -> None:
    """It has the whole past, and neither is touched by what becomes of the other."""
    graph = chat(saver)
    for number in range(3):
        graph.invoke({"messages": [said(number, 200)]}, thread(), durability="sync")
    whole = past(graph, thread())
    saver.copy_thread("talk", "copy")
    saver.delete_thread("talk")
    assert past(graph, thread("copy")) == whole
    graph.invoke({"messages": [said(9)]}, thread("copy"), durability="sync")
    with pytest.raises(Conflict, match="there is a thread 'copy' already"):
        saver.copy_thread("other", "copy")


def test_who_builds_on_what_was_removed_writes_the_whole(kept: str) -> None:
    """A saver that has a value at hand which another removed does not name it."""
    with HoldfastSaver(kept) as ours, HoldfastSaver(kept) as theirs:
        graph = chat(ours)
        graph.invoke({"messages": [said(1, 300)]}, thread(), durability="sync")
        old = graph.get_state(thread()).config
        graph.invoke({"messages": [said(2, 300)]}, thread(), durability="sync")
        found = ours.get_tuple(old)
        assert found is not None
        theirs.delete_thread("talk")
        checkpoint: Any = dict(found.checkpoint) | {"id": empty_checkpoint()["id"]}
        config = ours.put(found.config, checkpoint, {"source": "fork"}, {})
        again = theirs.get_tuple(config)
        assert again is not None
        assert again.checkpoint["channel_values"] == found.checkpoint["channel_values"]


def test_a_way_to_prune_that_there_is_not_is_refused(file_saver: HoldfastSaver) -> None:
    """Nothing is removed by guess."""
    with pytest.raises(InvalidInput, match="'keep_all': keep_latest, delete"):
        file_saver.prune(["talk"], strategy="keep_all")


def test_a_run_is_deleted_from_a_thread_whose_name_goes_on_from_a_deleted_ones(file_saver: HoldfastSaver) -> None:
    """What a run's shelf says of one thread goes without what it says of another."""
    for name in ("ann", "ann-2"):
        config = thread(name) | {"metadata": {"run_id": "run-1"}}
        chat(file_saver).invoke({"messages": [said(1)]}, config, durability="sync")
    file_saver.delete_thread("ann")
    file_saver.delete_for_runs(["run-1"])
    assert list(file_saver.list(None)) == []
