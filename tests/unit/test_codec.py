"""Values come back as they were, or are refused at once; a digest is the same everywhere and for ever."""

import math
import os
import re
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import apsw
import httpx2
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import limits
from holdfast.core.codec import Codec, canonical, decode_any, digest, encode
from holdfast.core.errors import InvalidValue, PayloadTooLarge


@dataclass
class Point:
    """A dataclass."""

    x: int
    tags: list[str] = field(default_factory=list)


class Order(msgspec.Struct):
    """A msgspec struct, nested."""

    id: UUID
    at: datetime
    items: dict[str, Point]


class Opaque:
    """A class without fields or equality that could be data."""


class Customer(pydantic.BaseModel):
    """A pydantic model with a field that pydantic alone understands."""

    name: str
    site: pydantic.HttpUrl
    born: date | None = None


class Movie(TypedDict):
    """A typed dict."""

    title: str
    year: int


class Place(NamedTuple):
    """A named tuple."""

    lat: float
    lon: float


class Colour(Enum):
    """An enum."""

    RED = "red"


class Level(StrEnum):
    """A text enum."""

    HIGH = "high"


Pair = namedtuple("Pair", "a b")


class Settings(pydantic.BaseModel):
    """A model that holds a secret."""

    token: pydantic.SecretStr


@dataclass
class Credentials:
    """A dataclass that holds a secret."""

    token: pydantic.SecretStr


ROUND_TRIPS: list[tuple[Any, Any]] = [
    (int, 10**30),
    (float, 0.1),
    (str, "é\u2028\x00😀"),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff"),
    (Any, {"a": [1, 2.5, None, True, {"b": "c"}]}),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[int, str], {1: "a"}),
    (dict[str, tuple[int, int]], {"a": (1, 2)}),
    (int | str | None, "x"),
    (Literal["a", "b"], "a"),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)),
    (date, date(2026, 1, 2)),
    (timedelta, timedelta(days=3, microseconds=7)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Point, Point(1, ["a"])),
    (list[Point], [Point(1), Point(2)]),
    (Order, Order(UUID(int=1), datetime(2026, 1, 1, tzinfo=UTC), {"a": Point(1)})),
    (Movie, {"title": "Stalker", "year": 1979}),
    (Place, Place(1.0, 2.0)),
    (Customer, Customer(name="Ann", site=pydantic.HttpUrl("https://example.org/"), born=date(1990, 1, 1))),
    (list[Customer], [Customer(name="Ann", site=pydantic.HttpUrl("https://example.org/"))]),
    (dict[str, Customer | None], {"a": None}),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=lambda part: str(part)[:40])
def test_a_value_of_its_type_comes_back_as_it_was(annotation: Any, value: Any) -> None:
    """Live equals replayed: the same value and the same type, from the bytes alone."""
    body, back = Codec(annotation).round_trip(value, "it")
    assert back == value
    assert type(back) is type(value)
    again = Codec(annotation).decode(body)
    assert again == value
    assert type(again) is type(value)


NOT_WHAT_IT_WAS: list[tuple[Any, Any]] = [
    (Any, (1, 2)),
    (Any, {1, 2}),
    (Any, {"a": (1,)}),
    (Any, {1: "a"}),
    (Any, b"bytes"),
    (Any, datetime(2026, 1, 1, tzinfo=UTC)),
    (Any, UUID(int=1)),
    (Any, Decimal("1.1")),
    (Any, Point(1)),
    (Any, Order(UUID(int=1), datetime(2026, 1, 1, tzinfo=UTC), {})),
    (Any, Customer(name="Ann", site=pydantic.HttpUrl("https://example.org/"))),
    (Any, Place(1.0, 2.0)),
    (Any, Pair(1, 2)),
    (Any, Colour.RED),
    (int, "1"),
    (int, None),
    (int, 1.5),
    (str, 1),
    (list[int], (1, 2)),
    (list[int], ["a"]),
    (Point, {"x": 1}),
    (Movie, {"title": "Stalker"}),
    (Level, "low"),
    (dict[str, int], {"a": "b"}),
    (dict[Any, Any], {1: "a", "1": "b"}),
]


@pytest.mark.parametrize(("annotation", "value"), NOT_WHAT_IT_WAS, ids=lambda part: str(part)[:40])
def test_a_value_that_would_come_back_as_another_is_refused_at_once(annotation: Any, value: Any) -> None:
    """A replay must not return what the first execution did not; the error says what to do."""
    with pytest.raises(InvalidValue, match=r"the result of 0/f#1 .* annotate it"):
        Codec(annotation).round_trip(value, "the result of 0/f#1")


@pytest.mark.parametrize(
    "value",
    [
        pydantic.SecretStr("s3cret"),
        Settings(token=pydantic.SecretStr("s3cret")),
        Credentials(pydantic.SecretStr("s3cret")),
        pydantic.create_model("Nested", all=(dict[str, list[Settings]], ...))(all={"a": [{"token": "s3cret"}]}),
    ],
    ids=["bare", "model", "dataclass", "nested"],
)
def test_a_secret_is_refused_and_not_named(value: Any) -> None:
    """A secret reaches neither the journal nor the error's text, and its mask is not stored in its stead."""
    for write in (encode, canonical, lambda value: Codec(type(value)).round_trip(value, "it")):
        with pytest.raises(InvalidValue, match="secret") as refused:
            write(value)
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("inside", [lambda value: value, lambda value: [value], lambda value: {"a": {"b": value}}])
@pytest.mark.parametrize(
    "make",
    [
        lambda: socket.socket(),
        lambda: threading.Lock(),
        lambda: apsw.Connection(":memory:"),
        lambda: httpx2.Client(),
        Opaque,
        lambda: lambda: None,
        lambda: 1j,
        lambda: iter(()),
        lambda: sys,
        lambda: Opaque,
    ],
    ids=["socket", "lock", "connection", "client", "object", "function", "complex", "iterator", "module", "class"],
)
def test_what_is_not_data_is_refused_with_where_it_belongs(make: Any, inside: Any) -> None:
    """A pool or a client among the arguments is an error that says so, in stored and in canonical form."""
    thing = make()
    for write in (encode, canonical):
        with pytest.raises(InvalidValue, match="argument 'pool'") as refused:
            write(inside(thing), "argument 'pool'")
        assert "App(deps=)" in refused.value.hint
    if hasattr(thing, "close"):
        thing.close()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "inside",
    [
        lambda n: n,
        lambda n: [1, n],
        lambda n: {"a": {"b": (n,)}},
        lambda n: {"null": n},
        lambda n: Place(n, 1.0),
        lambda n: msgspec.defstruct("S", [("n", float)])(n),
        lambda n: make_dataclass("D", [("n", float)])(n),
        lambda n: pydantic.create_model("M", n=(float, ...))(n=n),
    ],
    ids=["bare", "list", "nested", "beside null", "named tuple", "struct", "dataclass", "model"],
)
def test_numbers_that_json_cannot_carry_are_refused(number: float, inside: Any) -> None:
    """NaN and the infinities are never stored as null."""
    for write in (encode, canonical):
        with pytest.raises(InvalidValue, match="NaN or an infinity"):
            write(inside(number))


def test_null_beside_ordinary_numbers_is_fine() -> None:
    """The look for NaN refuses nothing else."""
    assert decode_any(encode({"a": None, "b": [1.5, None], "c": "null"})) == {"a": None, "b": [1.5, None], "c": "null"}


@pytest.mark.parametrize("write", [encode, canonical])
def test_a_lone_surrogate_is_refused(write: Any) -> None:
    """What is not text cannot be stored as text."""
    for value in ("\ud800", {"\ud800": 1}):
        with pytest.raises(InvalidValue):
            write(value)


@pytest.mark.parametrize("write", [encode, canonical])
@pytest.mark.parametrize("levels", [limits.NESTING + 1, 5_000, 200_000])
def test_a_value_nested_too_deep_is_refused_by_name(write: Any, levels: int) -> None:
    """Depth has a stated bound, met before any stack is."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    with pytest.raises(InvalidValue, match="argument 'tree' is nested more than 200 levels"):
        write(value, "argument 'tree'")
    while value:
        value = value.pop()


@pytest.mark.parametrize("write", [encode, canonical])
def test_a_value_nested_to_the_bound_is_kept(write: Any) -> None:
    """The bound itself is allowed, and brackets inside text do not count."""
    value: Any = "[{" * 1000
    for _ in range(limits.NESTING):
        value = [value]
    assert decode_any(write(value)) == value


@pytest.mark.parametrize("write", [encode, canonical])
def test_a_payload_over_the_limit_is_refused_with_its_name_and_size(write: Any) -> None:
    """Too large fails at once, with the culprit's name; it is not retried for ever."""
    with pytest.raises(
        PayloadTooLarge, match=r"argument 'page' is 16,777,218 bytes; the limit is 16,777,216"
    ) as refused:
        write("x" * limits.PAYLOAD_BYTES, "argument 'page'")
    assert (refused.value.size, refused.value.limit) == (limits.PAYLOAD_BYTES + 2, limits.PAYLOAD_BYTES)
    assert len(write("x" * (limits.PAYLOAD_BYTES - 2))) == limits.PAYLOAD_BYTES


def test_an_annotation_that_no_value_can_be_stored_by_is_refused() -> None:
    """A type that cannot be decoded fails where it is declared, not where it is read."""
    with pytest.raises(InvalidValue, match="Opaque"):
        Codec(Opaque).round_trip(Opaque(), "it")
    with pytest.raises(InvalidValue):
        Codec(int | dict[str, int] | Point | Order)


@pytest.mark.parametrize("body", [b"", b"{", b'"a"', b"\xff", b"[" * 2000])
def test_stored_bytes_of_another_type_are_refused(body: bytes) -> None:
    """A decode error is ours, and names what was read."""
    with pytest.raises(InvalidValue, match="the result"):
        Codec(int).decode(body, "the result")


def test_what_equals_is_returned_as_a_replay_will_read_it() -> None:
    """An ordered dict or a text enum under `Any` becomes what the bytes say, on the first execution too."""
    for value, kind in ((OrderedDict(a=1), dict), (Level.HIGH, str)):
        _, back = Codec(Any).round_trip(value, "it")
        assert back == value
        assert type(back) is kind


DIGESTS: list[tuple[Any, bytes, str]] = [
    ({}, b"{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
    ({"b": 1, "a": 2}, b'{"a":2,"b":1}', "d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772"),
    (
        {"é": 1, "z": 2, "😀": 3, "\uffff": 4, "": 5},
        b'{"":5,"z":2,"\xc3\xa9":1,"\xef\xbf\xbf":4,"\xf0\x9f\x98\x80":3}',
        "6c9b6772e6c3b5c21ebea8381532340a3e000db9a3884403d58c664cdfd6fbc3",
    ),
    (2**53, b"9007199254740992", "c681da39d7273a6a24c15c9cac3a75526ff2ecf8ba4ee60346a0c70c8163bdb2"),
    (2**53 + 1, b"9007199254740993", "a1c367c29158357e62a3ff5d3e800fb7698a22396439dbc0a9d4929322afd35d"),
    (10**30, b"1" + b"0" * 30, "fa72d4146f76703a4c9589d4a4af8722b2568665c8f8b8aa773d800e00a12d1f"),
    (-(2**63) - 1, b"-9223372036854775809", "a11b7b6918ba4e84f8e3ab75638e7325e9f891fcf575dd801756523d4bc8a966"),
    (0.1, b"0.1", "14be4b45f18e0d8c67b4f719b5144eee88497e413709d11d85b096d8e2346310"),
    (1.0, b"1.0", "d0ff5974b6aa52cf562bea5921840c032a860a91a3512f7fe8f768f6bbe005f6"),
    (1e16, b"1e16", "9b99f7098fef3c4283213de65c4dcf4949b1e5c8220cd58fd5207e72489a75e7"),
    (1e22, b"1e22", "9540e265d47f306ab4eff11bd7196b22215a3914d21c0dc59a61769a6462d046"),
    (1e-07, b"1e-7", "5b33e02f2c5103a05d32f6ba9cb058294452bfbf393967f68bb30c1bdcbbab22"),
    (5e-324, b"5e-324", "c46e7ca1be4c8734f373a56530787288fa2058d73d07855e9247e949f811a42a"),
    (
        1.7976931348623157e308,
        b"1.7976931348623157e308",
        "217ab4b30c6f536b285884e38da73315e3c6e694910dbbd5ae36f396b6f835bb",
    ),
    (-0.0, b"-0.0", "c26617c7ccbcaa6631b45d851b8cf56e21d2ca624bdb1193afdbd4b560702cec"),
    (123456789.123, b"123456789.123", "6905a10bd05a60b8d3c90dbc6164cfdc79f8b872a1834df8aefd90396393fdbf"),
    (
        '\u2028"\\\n\x7f\x00é',
        b'"\xe2\x80\xa8\\"\\\\\\n\x7f\\u0000\xc3\xa9"',
        "4b5e9d929dc6b7aa822c403d847947938cb9e5b3a046a74f160ebf3af8ef04c3",
    ),
    ([None, True, False], b"[null,true,false]", "37257214f22b92121c5ff4d7e29ed2d31b3f1129ee698e96e581ec05cb2e3cf7"),
    ({10: 1, 9: 2}, b'{"10":1,"9":2}', "616552edfd5a183bdce250113b15ed494216894acf4234431e9eef6a1eb9675a"),
]


@pytest.mark.parametrize(("value", "form", "expected"), DIGESTS, ids=lambda part: str(part)[:24])
def test_a_digest_never_changes(value: Any, form: bytes, expected: str) -> None:
    """Keys by code point, integers exact, floats as they were first written: old digests are compared for ever."""
    assert canonical(value) == form
    assert digest(value) == expected


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain_values)
def test_plain_data_comes_back_exactly(value: Any) -> None:
    """Whatever is JSON is stored and read without loss, and its canonical form reads as the same."""
    body, back = Codec(Any).round_trip(value, "it")
    assert back == value
    assert decode_any(body) == value
    assert decode_any(canonical(value)) == value
    assert repr(back) == repr(value)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), min_size=2), st.randoms())
def test_the_order_of_keys_does_not_change_a_digest(value: dict[str, int], chance: Any) -> None:
    """The same arguments are the same input, however they were put together."""
    shuffled = list(value.items())
    chance.shuffle(shuffled)
    assert digest(dict(shuffled)) == digest(value)


def test_a_digest_is_the_same_in_every_process() -> None:
    """Hashes of text differ from process to process; the order of a set must not show."""
    values = "{'a', 'b', 'c', 'd'}", "{1: {'a', 'b', 'c', 'd'}}", "[{'x': frozenset('abcdef')}]"
    program = f"from holdfast.core.codec import digest; print(*map(digest, [{', '.join(values)}]))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(printed) == 1


@pytest.mark.parametrize(("annotation", "said"), [(str, "str"), (list[int], "list[int]"), (int | None, "int | None")])
def test_a_type_that_a_value_does_not_have_is_named_as_it_is_written(annotation: Any, said: str) -> None:
    """Whoever reads it wrote `str`, not `<class 'str'>`."""
    with pytest.raises(InvalidValue, match=rf"^the value does not have the type {re.escape(said)}: "):
        Codec(annotation).decode(b'{"a": 1}')
