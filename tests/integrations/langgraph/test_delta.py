"""A value that is stored as what it adds is read back as it was, and costs what it adds."""

from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint

from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph.delta import Assembly, Encoded, Held, Row, follow
from tests.integrations.langgraph.graphs import chat, said, thread

PIECES = st.integers(0, 9).map(lambda n: bytes([n]) * (40 + 60 * n))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(PIECES, max_size=3)),
        st.tuples(st.just("cut"), st.integers(0, 5)),
        st.tuples(st.just("forget"), st.integers(0, 5)),
        st.tuples(st.just("change"), st.integers(0, 9)),
        st.tuples(st.just("back"), st.integers(0, 30)),
    ),
    max_size=40,
)


def stepped(pieces: list[bytes], step: str, by: Any) -> list[bytes]:
    """Return a list that was changed as lists of messages are."""
    if step == "append":
        return pieces + by
    if step == "cut":
        return pieces[: len(pieces) - by] if by else pieces
    if step == "forget":
        return pieces[by:]
    return [b"!" * 90 if place == by else piece for place, piece in enumerate(pieces)]


def assembled(rows: dict[bytes, Row], key: bytes) -> Held:
    """Put a value together from its rows."""
    assembly, below = Assembly(), key
    while (next_key := assembly.take(below, rows[below])) is not None:
        below = next_key
    return assembly.held()


@given(STEPS)
def test_every_version_of_a_list_is_read_back_from_its_rows(steps: list[tuple[str, Any]]) -> None:
    """However it grew, shrank, slid, changed or branched off, and whether its base was at hand or was read."""
    rows: dict[bytes, Row] = {}
    bodies: list[bytes] = []
    versions: list[list[bytes]] = []
    held: Held | None = None
    pieces: list[bytes] = [b"begin" * 30]
    for number, (step, by) in enumerate(steps):
        if step == "back" and versions:
            place = by % len(versions)
            pieces, held = versions[place], assembled(rows, b"%06d" % place)
        elif step != "back":
            pieces = stepped(pieces, step, by)
        key = b"%06d" % len(bodies)
        rows[key], held = follow(held, Encoded("msgpack", len(pieces), pieces), key)
        if number % 3 == 0:
            held = assembled(rows, key)
        bodies.append(b"".join(pieces))
        versions.append(pieces)
    assert [assembled(rows, b"%06d" % place).body for place in range(len(bodies))] == bodies


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=20))
def test_every_version_of_other_values_is_read_back_too(values: list[bytes]) -> None:
    """A text or an object is compared byte by byte."""
    rows: dict[bytes, Row] = {}
    held: Held | None = None
    for number, value in enumerate(values):
        body = b"the same beginning of all of them, longer than what is too short to share" + value
        values[number] = body
        rows[b"%d" % number], held = follow(held, Encoded("msgpack", None, [body]), b"%d" % number)
    assert [assembled(rows, b"%d" % number).body for number in range(len(values))] == values


def test_what_ends_differently_each_time_is_not_spread_over_ever_more_rows() -> None:
    """Each row gives something to the value; one of tiny pieces is written whole now and then."""
    held: Held | None = None
    depth = 0
    for number in range(500):
        pieces = [b"x" * 300, *(b"%03d" % n for n in range(number)), b"end %d" % number]
        _, held = follow(held, Encoded("msgpack", len(pieces), pieces), b"%06d" % number)
        depth = max(depth, held.link.depth)
    assert depth < 40


def stored(path: Path) -> int:
    """Return how many bytes the items of a file have."""
    connection = apsw.Connection(str(path))
    try:
        [[size]] = connection.execute("SELECT sum(length(key) + length(body)) FROM hf_items").fetchall()
        assert isinstance(size, int)
        return size
    finally:
        connection.close()


def test_a_conversation_of_twice_the_messages_costs_twice_the_bytes(tmp_path: Path) -> None:
    """Every superstep hands over all messages, and what is stored of it is the new one."""
    sizes: list[int] = []
    for turns in (30, 60):
        path = tmp_path / f"{turns}.db"
        with HoldfastSaver(f"sqlite:///{path}") as saver:
            graph = chat(saver)
            for number in range(turns):
                graph.invoke({"messages": [said(number, 1000)]}, thread(), durability="sync")
        sizes.append(stored(path))
    assert sizes[1] < 2.1 * sizes[0]
    assert sizes[1] < 60 * 2 * 1000 * 5


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 65535, 65536])
def test_a_list_of_any_length_comes_back(count: int) -> None:
    """The head of a list says how long it is, in three forms."""
    value = [number % 7 for number in range(count)]
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"numbers": value}, {"numbers": 1}
    with HoldfastSaver("memory://") as saver:
        config = saver.put(thread(checkpoint_ns=""), checkpoint, {"source": "loop"}, {"numbers": 1})
        again = saver.get_tuple(config)
        assert again is not None
        assert again.checkpoint["channel_values"] == {"numbers": value}
