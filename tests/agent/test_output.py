"""The form of an answer: what has it is the result, what has not is asked for again, within a limit."""

from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
from msgspec import Struct

import holdfast as hf
from holdfast.testing import ScriptedModel, every_crash
from tests.agent.lines import LIMIT_SECONDS, said_in


@dataclass
class Order:
    """An order."""

    number: int
    broken: bool


class Record(Struct):
    """The same, another way."""

    number: int


class Model(pydantic.BaseModel):
    """The same, a third way."""

    number: int


def agent(kind: Any, *lines: Any, **options: Any) -> hf.Agent[Any]:
    """Return an agent that answers so."""
    return hf.Agent("reader", model=ScriptedModel(*lines), output=kind, **options)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Order, '{"number": 42, "broken": true}', Order(42, True)),
        (Record, '{"number": 42}', Record(42)),
        (Model, '{"number": 42}', Model(number=42)),
        (list[int], "[1, 2]", [1, 2]),
        (int, "7", 7),
        (Order, '```json\n{"number": 42, "broken": false}\n```', Order(42, False)),
    ],
)
async def test_an_answer_of_a_type_is_read_as_that_type(kind: Any, text: str, value: Any) -> None:
    """Dataclasses, msgspec, pydantic and plain types; a fence around the JSON is no mistake."""
    async with hf.testing.open(hf.App(reader := agent(kind, text))) as runtime:
        assert await runtime.run(reader, "read") == value


async def test_the_model_is_given_the_schema_of_the_answer() -> None:
    """A provider that can keep to a schema is told it."""
    model = ScriptedModel('{"number": 1}')
    async with hf.testing.open(hf.App(reader := hf.Agent("reader", model=model, output=Record))) as runtime:
        await runtime.run(reader, "read")
    schema = model.requests[0].output
    assert schema is not None
    assert "number" in str(schema)


async def test_an_answer_without_its_form_is_asked_for_again_and_told_what_is_wrong() -> None:
    """The model hears what is wrong, as a message of the journal, and may mend it."""
    async with hf.testing.open(hf.App(reader := agent(Record, "forty-two", '{"number": 42}'))) as runtime:
        run = await runtime.start(reader, "read")
        assert await run.result(timeout=LIMIT_SECONDS) == Record(42)
        said = await said_in(run)
    assert [message.role for message in said] == ["user", "assistant", "user", "assistant"]
    assert said[2].text.startswith("Your answer is not what was asked for")


async def test_asking_again_has_a_limit_with_an_error_of_its_own() -> None:
    """A model that never finds the form costs `output_limit` more generations, and no more."""
    reader = agent(Record, "one", "two", "three", output_limit=1)
    async with hf.testing.open(hf.App(reader)) as runtime:
        with pytest.raises(hf.RunError, match="OutputInvalid: the answer of reader, asked for 2 times"):
            await runtime.run(reader, "read")


async def test_a_crash_while_another_answer_is_asked_for_changes_nothing() -> None:
    """What was asked again is recorded: the count and the words are those of an unbroken turn."""
    reader = agent(Record, "one", "two", '{"number": 3}')
    survived = await every_crash(reader, "read")
    assert survived.unbroken.result == {"number": 3}
