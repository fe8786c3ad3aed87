"""Nothing is built from a row that was not allowed, nothing is stored that could not be read, damage is named."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import apsw
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from holdfast.core.errors import Damaged, InvalidInput, InvalidValue, Misuse, PayloadTooLarge, StoreClosed
from holdfast.integrations.langgraph import HoldfastSaver
from tests.integrations.langgraph.graphs import chat, said, thread


class Order(BaseModel):
    """A model of the user's."""

    number: int


@dataclasses.dataclass
class Parcel:
    """A dataclass of the user's."""

    order: Order


def put(saver: BaseCheckpointSaver[Any], value: Any) -> Any:
    """Store a checkpoint with one value, and return where it is."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"held": value}, {"held": 1}
    return saver.put(thread(checkpoint_ns=""), checkpoint, {"source": "loop"}, {"held": 1})


def read(saver: BaseCheckpointSaver[Any], config: Any) -> Any:
    """Return the value."""
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]["held"]


@pytest.mark.parametrize("value", [Order(number=1), [Order(number=1)], {"in": [Parcel(Order(number=1))]}])
def test_a_class_that_was_not_allowed_is_refused_before_it_is_stored(file_saver: HoldfastSaver, value: Any) -> None:
    """LangGraph would store it and hand out a dict; here nothing is stored, and the error says what to write."""
    with pytest.raises(InvalidValue, match=r"channel 'held' of thread 'talk' holds a .*test_safety") as caught:
        put(file_saver, value)
    assert "allow=[" in caught.value.hint
    assert file_saver.get_tuple(thread()) is None
    with pytest.raises(InvalidValue):
        file_saver.put_writes(thread(checkpoint_ns="", checkpoint_id="1"), [("held", value)], "task")


def test_a_class_that_was_allowed_comes_back_as_itself(tmp_path: Path) -> None:
    """By the class, or by its module and name."""
    pairs: list[Any] = [Order, (Parcel.__module__, "Parcel")]
    with HoldfastSaver(f"sqlite:///{tmp_path / 'a.db'}", allow=pairs) as saver:
        assert read(saver, put(saver, [Parcel(Order(number=3))])) == [Parcel(Order(number=3))]


def test_a_class_that_is_allowed_no_more_is_not_built_from_a_row(tmp_path: Path) -> None:
    """Whoever can write rows cannot choose what is built: it is damage, not a value of another kind."""
    address = f"sqlite:///{tmp_path / 'a.db'}"
    with HoldfastSaver(address, allow=[Order]) as saver:
        config = put(saver, Order(number=3))
    with HoldfastSaver(address) as strict, pytest.raises(Damaged, match="Order, which is not among the types"):
        strict.get_tuple(config)


def test_pickle_is_refused_wherever_it_might_come_in(tmp_path: Path) -> None:
    """By a serializer, by a value that only pickle could store, and by a row that asks for it."""
    with pytest.raises(InvalidInput, match="pickle"):
        HoldfastSaver("memory://", serde=JsonPlusSerializer(pickle_fallback=True))
    with HoldfastSaver("memory://") as saver, pytest.raises(InvalidValue, match="cannot be stored"):
        put(saver, [object()])
    with HoldfastSaver("memory://") as saver:
        config = put(saver, "harmless " * 20)
        rows = saver._store.shelves._held[saver._tenant, "langgraph/thread/talk"]  # type: ignore[attr-defined]
        [key] = [key for key in rows if key.startswith(b"v")]
        rows[key] = rows[key].replace(b"\xa7msgpack", b"\xa6pickle")
        saver._reader.bodies._held.clear()
        with pytest.raises(Damaged, match="form 'pickle'"):
            saver.get_tuple(config)
        assert pickle.loads(pickle.dumps("pickle itself works")) == "pickle itself works"


def test_options_that_contradict_each_other_are_refused() -> None:
    """A serializer of the caller's own says itself what it builds."""
    with pytest.raises(Misuse):
        HoldfastSaver("memory://", serde=JsonPlusSerializer(), allow=[Order])
    with pytest.raises(InvalidInput, match="allow="):
        HoldfastSaver("memory://", allow=["Order"])  # type: ignore[list-item]


def test_a_class_that_cannot_be_built_again_is_refused() -> None:
    """One that is defined inside a function has no name to be found by."""

    class Hidden(BaseModel):
        number: int

    with (
        HoldfastSaver("memory://", allow=[Hidden]) as saver,
        pytest.raises(InvalidValue, match="cannot be built again"),
    ):
        put(saver, Hidden(number=1))


def test_a_value_over_the_limit_is_refused_by_name(file_saver: HoldfastSaver) -> None:
    """At once, with the channel that it is in."""
    with pytest.raises(PayloadTooLarge, match="channel 'held' of thread 'talk'"):
        put(file_saver, "x" * (16 * 1024 * 1024 + 1))


@pytest.mark.parametrize("config", [{}, {"configurable": {}}, thread(""), thread("a\0b"), thread("x" * 600)])
def test_a_thread_that_cannot_be_named_is_refused(file_saver: HoldfastSaver, config: Any) -> None:
    """Never replaced by another."""
    with pytest.raises(InvalidInput):
        file_saver.get_tuple(config)


@pytest.mark.parametrize("kind", [b"c", b"v", b"w"])
def test_a_row_that_is_not_as_it_was_stored_is_named(tmp_path: Path, kind: bytes) -> None:
    """A flipped byte in a checkpoint, a value or a write is damage, not another state; other threads go on."""
    path = tmp_path / "a.db"
    with HoldfastSaver(f"sqlite:///{path}") as saver:
        for name in ("talk", "other"):
            chat(saver).invoke({"messages": [said(1, 500)]}, thread(name), durability="sync")
    connection = apsw.Connection(str(path))
    sql = """
        UPDATE hf_items SET body = CAST(substr(body, 1, length(body) - 1) || x'00' AS BLOB)
         WHERE substr(key, 1, 1) = ? AND shelf = (SELECT number FROM hf_shelves WHERE shelf LIKE '%/talk')
    """
    connection.execute(sql, (kind,))
    connection.close()
    with HoldfastSaver(f"sqlite:///{path}") as saver:
        with pytest.raises(Damaged, match=r"langgraph/thread/talk.*checksum"):
            list(saver.list(thread()))
        assert len(list(saver.list(thread("other")))) == 3


def test_a_closed_saver_says_so(tmp_path: Path) -> None:
    """As often as it is closed, and as it is asked."""
    saver = HoldfastSaver(f"sqlite:///{tmp_path / 'a.db'}")
    saver.close()
    saver.close()
    with pytest.raises(StoreClosed):
        saver.get_tuple(thread())
