"""What a model is told of a function, from its type hints and docstring alone."""

import dataclasses
import enum
import functools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

import holdfast as hf
from holdfast.agent.tool import as_tool
from holdfast.core.errors import InvalidInput


class Color(enum.Enum):
    """A color."""

    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Street:
    """Where somebody lives."""

    name: Annotated[str, "as on the map"]
    number: int = 1


class Size(msgspec.Struct):
    """How large it is."""

    title: str
    inner: "Size | None" = None


class Extras(TypedDict):
    """What may be added."""

    gift: bool
    note: NotRequired[str]


class Item(pydantic.BaseModel):
    """A thing that is sold."""

    name: str
    count: int = pydantic.Field(default=1, ge=1, description="how many")
    parts: "list[Item]" = []


HINTS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (int, {"type": "integer"}, {}),
    (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}, {}),
    (Any, {}, {}),
    (Literal["a", "b"], {"enum": ["a", "b"]}, {}),
    (list[float], {"type": "array", "items": {"type": "number"}}, {}),
    (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}, {}),
    (datetime, {"type": "string", "format": "date-time"}, {}),
    (datetime | None, {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}, {}),
    (Annotated[int, msgspec.Meta(ge=3, description="3")], {"type": "integer", "minimum": 3, "description": "3"}, {}),
    (Annotated[int, pydantic.Field(ge=4, description="4")], {"type": "integer", "minimum": 4, "description": "4"}, {}),
    (Annotated[str, "a text"], {"type": "string", "description": "a text"}, {}),
    (Color, {"$ref": "#/$defs/Color"}, {"Color": {"description": "A color.", "enum": ["blue", "red"]}}),
    (
        Street,
        {"$ref": "#/$defs/Street"},
        {
            "Street": {
                "description": "Where somebody lives.",
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "as on the map"},
                    "number": {"type": "integer", "default": 1},
                },
                "required": ["name"],
            }
        },
    ),
    (
        Size,
        {"$ref": "#/$defs/Size"},
        {
            "Size": {
                "description": "How large it is.",
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "inner": {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}], "default": None},
                },
                "required": ["title"],
            }
        },
    ),
    (
        Extras,
        {"$ref": "#/$defs/Extras"},
        {
            "Extras": {
                "description": "What may be added.",
                "type": "object",
                "properties": {"gift": {"type": "boolean"}, "note": {"type": "string"}},
                "required": ["gift"],
            }
        },
    ),
    (
        list[Item],
        {"type": "array", "items": {"$ref": "#/$defs/Item"}},
        {
            "Item": {
                "description": "A thing that is sold.",
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "count": {"type": "integer", "minimum": 1, "default": 1, "description": "how many"},
                    "parts": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "default": []},
                },
                "required": ["name"],
            }
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "schema", "defs"), HINTS, ids=lambda each: str(each)[:40])
def test_a_type_hint_becomes_its_json_schema(hint: Any, schema: dict[str, Any], defs: dict[str, Any]) -> None:
    """Every kind of type that authors use is told in JSON Schema, without a title and without a name of ours."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = hint
    wanted = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    assert hf.tool(function).spec.schema == wanted | ({"$defs": defs} if defs else {})


def test_two_types_of_one_name_stay_two() -> None:
    """Types from different modules may share a name; neither is told as the other."""
    first = msgspec.defstruct("Thing", [("a", int)])
    second = dataclasses.make_dataclass("Thing", [("b", str)])
    box = dataclasses.make_dataclass("Box", [("held", second)])

    def function(x: Any, y: Any) -> None: ...

    function.__annotations__ |= {"x": first, "y": box}
    schema = hf.tool(function).spec.schema

    def fields(ref: dict[str, str]) -> Any:
        return schema["$defs"][ref["$ref"].rpartition("/")[2]]["properties"]

    assert list(fields(schema["properties"]["x"])) == ["a"]
    assert list(fields(fields(schema["properties"]["y"])["held"])) == ["b"]


def test_defaults_are_told_and_make_a_parameter_optional() -> None:
    """A default is data for the model where it is data at all."""

    def function(a: int, b: Color = Color.RED, c: Any = object()) -> None:  # noqa: B008 - that is the point
        ...

    schema = hf.tool(function).spec.schema
    assert schema["required"] == ["a"]
    assert schema["properties"]["b"]["default"] == "red"
    assert "default" not in schema["properties"]["c"]


def test_what_the_agent_gives_is_not_shown_to_the_model() -> None:
    """The injected first parameter is none of the model's business; nor is what a partial has bound."""

    def function(step: hf.Step[None], order: str, shop: str) -> None: ...

    def plain(order: str, shop: str) -> None: ...

    assert list(hf.tool(function).spec.schema["properties"]) == ["order", "shop"]
    bound = hf.tool(name="plain")(functools.partial(plain, shop="mine"))
    assert list(bound.spec.schema["properties"]) == ["order"]
    assert hf.tool(function).code.inject == "step"


def varargs(*names: str) -> None: ...
def keywords(**names: str) -> None: ...
def positional(name: str, /) -> None: ...
def late(name: str, step: hf.Step[None]) -> None: ...
def forward(name: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point
def no_data(pool: Callable[[], None]) -> None: ...
def field(n: int = pydantic.Field(3)) -> None: ...
def yields(n: int) -> Any:
    yield n


class Holder:
    def method(self, n: int) -> int:
        """Double it."""
        return 2 * n


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (varargs, r"'names' of varargs: .*\*args"),
        (keywords, r"'names' of keywords: .*\*\*kwargs"),
        (positional, "'name' of positional: .*before a `/`"),
        (late, "'step' of late: .*stands first"),
        (forward, "annotations of forward cannot be read: .*Nowhere"),
        (no_data, "'pool' of no_data: .*Callable.* cannot be described"),
        (field, r"'n' of field: .*Annotated\["),
        (yields, "yields: "),
        (Holder, "is a class"),
        (Holder.method, "is a method without its object"),
        (lambda n: n, "has no name"),
        ("words", "wants a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_where_it_is_declared(function: Any, says: str) -> None:
    """The message names the parameter and what is wrong with it."""
    with pytest.raises(InvalidInput, match=says):
        hf.tool(function)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "größe"])
def test_a_name_that_providers_refuse_is_refused_first(name: str) -> None:
    """A bad name is found by its author, not by the first request."""
    with pytest.raises(InvalidInput, match="name"):
        hf.tool(name=name)(lambda: None)


def test_a_bound_method_is_a_tool() -> None:
    """Its object is bound, and the model sees the other parameters."""
    tool = as_tool(Holder().method)
    assert (tool.name, tool.spec.description, list(tool.spec.schema["properties"])) == ("method", "Double it.", ["n"])
    assert tool(4) == 8


def test_a_schema_has_the_same_bytes_whenever_it_is_made() -> None:
    """Prompt prefixes stay cached only if the tools are told in the same bytes."""

    def function(a: Color, b: Item, c: Size, d: set[str] = frozenset({"x", "y", "z"})) -> None:  # type: ignore[assignment]
        ...

    once, again = (json.dumps(hf.tool(function).spec.schema) for _ in range(2))
    assert once == again
