"""Values that are not data, values that only an annotation brings back, and values that must come back exactly."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from msgspec import Struct


class Client:
    """Stands for a pool, a session or a connection."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Mute:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@dataclass
class Point:
    """A dataclass."""

    x: float
    y: float


class Leaf(Struct):
    """A struct."""

    name: str


class Colour(Enum):
    """An enumeration."""

    RED = "red"


def nested_list(depth: int) -> list[Any]:
    """Return lists in lists, `depth` deep."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def nested_dict(depth: int) -> dict[str, Any]:
    """Return objects in objects, `depth` deep."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def endless_list() -> list[Any]:
    """Return a list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


NOT_DATA: Final[dict[str, tuple[Callable[[], Any], str]]] = {
    "nan": (lambda: float("nan"), "NaN"),
    "infinity": (lambda: float("inf"), "infinity"),
    "minus infinity": (lambda: -float("inf"), "infinity"),
    "nan deep inside": (lambda: {"a": [1, {"b": float("nan")}]}, "NaN"),
    "nan in a dataclass": (lambda: Point(1.0, float("nan")), "NaN"),
    "lone surrogate": (lambda: "a\ud800b", "surrogate"),
    "lone surrogate in a key": (lambda: {"\udfff": 1}, "surrogate"),
    "lists 201 deep": (lambda: nested_list(201), "nested more than 200"),
    "lists a hundred thousand deep": (lambda: nested_list(100_000), "nested more than 200"),
    "objects a hundred thousand deep": (lambda: nested_dict(100_000), "nested more than 200"),
    "a list that holds itself": (endless_list, "nested more than 200"),
    "an integer too long for text": (lambda: 10**5000, "cannot be stored"),
    "an object": (object, "is not data"),
    "a client": (Client, "is not data"),
    "a client deep inside": (lambda: {"a": [Client()]}, "is not data"),
    "an object without repr": (Mute, "is not data"),
    "a lock": (threading.Lock, "is not data"),
    "a function": (lambda: nested_list, "is not data"),
    "a class": (lambda: Client, "is not data"),
    "a module": (lambda: sys, "is not data"),
    "a generator": (lambda: (word for word in "ab"), "is not data"),
    "a range": (lambda: range(3), "is not data"),
    "an ellipsis": (lambda: ..., "is not data"),
    "a complex number": (lambda: 1j, "is not data"),
    "an exception": (lambda: ValueError("x"), "is not data"),
}
"""Refused wherever it is given; the words are those that the message must hold."""

NEEDS_ANNOTATION: Final[dict[str, Callable[[], Any]]] = {
    "a set": lambda: {1, 2},
    "a tuple": lambda: (1, 2),
    "a tuple deep inside": lambda: {"a": [(1, 2)]},
    "bytes": lambda: b"abc",
    "a datetime": lambda: datetime(2026, 11, 15, tzinfo=UTC),
    "a decimal": lambda: Decimal("1.10"),
    "a uuid": lambda: UUID(int=7),
    "a dataclass": lambda: Point(1.0, 2.0),
    "a struct": lambda: Leaf("a"),
    "an enum": lambda: [Colour.RED],
    "integers as keys": lambda: {1: "a"},
}
"""Would be read back as something else, so it is refused where nothing says what it is."""

EXACT: Final[dict[str, tuple[Any, Any]]] = {
    "an integer beyond 64 bits": (2**70 + 1, int),
    "2 to the 53rd and one": (2**53 + 1, int),
    "the smallest 64-bit integer less one": (-(2**63) - 1, int),
    "an integer of 4,300 digits": (10**4299, int),
    "minus zero": (-0.0, float),
    "the smallest float": (5e-324, float),
    "the largest float": (1.7976931348623157e308, float),
    "text with a NUL": ("a\x00b", str),
    "composed text": ("caf\u00e9", str),
    "decomposed text": ("cafe\u0301", str),
    "text of every kind of character": ("\x01\x7f\u2028\ufeff\ufffd\U0010ffff'\"\\", str),
    "the text null": ("null", str),
    "lists 199 deep": (nested_list(199), Any),
    "strange keys": ({"": 1, "\x00": 2, "../": 3, "e\u0301": 4, "\u00e9": 5}, dict[str, int]),
    "no value": (None, Any),
    "bytes": (bytes(range(256)), bytes),
    "a set": ({3, 1, 2}, set[int]),
    "a tuple": ((1, "a"), tuple[int, str]),
    "integers as keys": ({-2: "b", 1: "a"}, dict[int, str]),
    "a datetime": (datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=UTC), datetime),
    "a date": (date(1, 1, 1), date),
    "a duration": (timedelta(days=-1, microseconds=1), timedelta),
    "a decimal": (Decimal("1.10"), Decimal),
    "a uuid": (UUID(int=7), UUID),
    "a dataclass": (Point(0.1, -0.0), Point),
    "a struct": (Leaf("\ufeff"), Leaf),
    "an enum": (Colour.RED, Colour),
}
"""With its annotation: comes back the same, live and replayed."""


@contextmanager
def handles() -> Iterator[dict[str, Any]]:
    """Give what belongs to the process and is not data: a socket, an event loop, a file."""
    loop = asyncio.new_event_loop()
    with socket.socket() as sock:
        try:
            yield {"a socket": sock, "an event loop": loop, "a file": sys.stderr}
        finally:
            loop.close()
