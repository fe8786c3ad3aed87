"""Nothing that a user can meet is left undocumented."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import holdfast as hf
from holdfast import events, harness, mcp, models
from holdfast.client.protocol import RunSummary, ScheduleInfo, WorkerInfo
from holdfast.core import limits
from holdfast.core.entry import KINDS
from holdfast.core.errors import HoldfastError
from holdfast.core.status import Effect, Status
from holdfast.engine.options import StepOptions
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.store.schema import migrations
from tests.docs.pages import PAGES, first_spans, page, rows

ERRORS: Final[dict[str, type[HoldfastError]]] = {}
_TO_VISIT = [HoldfastError]
while _TO_VISIT:
    _error = _TO_VISIT.pop()
    if _error.__module__ in ("holdfast.core.errors", "holdfast.agent.model"):
        ERRORS[_error.__name__] = _error
        _TO_VISIT += _error.__subclasses__()
LIMITS: Final = {name: value for name, value in vars(limits).items() if name.isupper()}
COLUMNS: Final = {
    table: {line.split()[0] for line in body.splitlines() if re.match(r"\s+[a-z_]+\s+(INTEGER|TEXT|BLOB)\b", line)}
    for script in migrations("sqlite")
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)^\)", script, re.MULTILINE | re.DOTALL)
}
for _table, _column in re.findall(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", "\n".join(migrations("sqlite"))):
    COLUMNS[_table].add(_column)
SETTINGS: Final[dict[str, Callable[..., Any]]] = {
    "hf.run": hf.run,
    "hf.open": hf.open,
    "hf.testing.open": hf.testing.open,
    "hf.testing.every_crash": hf.testing.every_crash,
    "hf.App": hf.App,
    "app.schedule": hf.App.schedule,
    "hf.durable": hf.durable,
    "hf.step": hf.step,
    "hf.tool": hf.tool,
    "hf.server.create_app": hf.server.create_app,
    "hf.server.handle_chat_turn": hf.server.handle_chat_turn,
    "hf.checkpoint.open": hf.checkpoint.open,
    "hf.checkpoint.interrupted": hf.checkpoint.interrupted,
    "mcp.Server": mcp.Server,
    "harness.Coding": harness.Coding,
    "harness.Remote": harness.Remote,
    "HoldfastSaver": HoldfastSaver,
    "models.OpenAI": models.OpenAI,
    "models.Anthropic": models.Anthropic,
    "models.PydanticAI": models.PydanticAI,
    "harness.GeminiInteractions": harness.GeminiInteractions,
    "harness.OpenAIResponses": harness.OpenAIResponses,
    "hf.Retry": hf.Retry,
    "hf.Limit": hf.Limit,
    "runtime.start": hf.Runtime.start,
    "runtime.get": hf.Runtime.get,
    "runtime.runs": hf.Runtime.runs,
    "runtime.drain": hf.Runtime.drain,
    "run.events": hf.Run.events,
    "run.result": hf.Run.result,
    "run.resolve": hf.Run.resolve,
    "run.signal": hf.Run.signal,
    "run.cancel": hf.Run.cancel,
    "runtime.answer": hf.Runtime.answer,
    "ctx.ask": hf.Context.ask,
    "ctx.receive": hf.Context.receive,
}


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_error_is_documented_with_its_code_and_hint(name: str) -> None:
    """Whoever meets an error finds it by its class or its code, and reads there what it says itself."""
    text, error = page("errors").text, ERRORS[name]
    prefix = "hf." if name in hf.__all__ else ""
    assert f"`{error.code}`" in text
    if error is HoldfastError:
        return
    [row] = [row for row in rows(text) if row[0] == f"`{prefix}{name}`"]
    assert row[1] == f"`{error.code}`"
    assert re.search(rf"[├└]── {name}$", text, re.MULTILINE)
    if "hint" in vars(error) and "nothing raises it yet" not in row[2]:
        assert [error.hint] == [hint for code, hint, *_ in rows(text.partition("## Hints")[2]) if code == row[1]]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_entry_kind_is_documented_with_every_field(kind: str) -> None:
    """What is on disk for ever is written down: each field of each kind, and no field that is not there."""
    own = {field.encode_name for field in msgspec.structs.fields(KINDS[kind])} - {"id", "run", "seq", "at"}
    assert first_spans(page("journal").section(kind)) == own


@pytest.mark.parametrize("table", sorted(COLUMNS))
def test_a_table_is_documented_with_every_column(table: str) -> None:
    """Whoever opens the file with another tool finds each column explained."""
    assert COLUMNS[table]
    assert first_spans(page("journal").section(table)) == COLUMNS[table]


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_limit_is_documented_with_its_value(name: str) -> None:
    """A bound that is changed is changed on its page too."""
    assert [str(LIMITS[name])] == [row[1] for row in rows(page("limits").text) if row[0] == f"`{name}`"]


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_an_option_is_documented_with_its_default(name: str) -> None:
    """Every option of every function is on the settings page, and its default is the true one."""
    options = {
        parameter.name: repr(parameter.default)
        for parameter in inspect.signature(SETTINGS[name]).parameters.values()
        if parameter.default is not parameter.empty
    }
    options.pop("function", None)
    section = page("settings").section(name)
    assert {row[0].strip("`"): row[1].strip("`") for row in rows(section)} == options


def test_the_options_of_a_step_are_documented() -> None:
    """The keywords of `ctx.step` are those of its page."""
    assert first_spans(page("settings").section("ctx.step")) == set(StepOptions.__annotations__)


def test_an_environment_variable_is_documented() -> None:
    """Each variable that Holdfast reads is on the settings page."""
    source = "\n".join(path.read_text("utf-8") for path in Path(hf.__file__).parent.rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", source))
    assert "HOLDFAST_STORE" in read
    assert read <= first_spans(page("settings").text) | {"COLUMNS"}


def test_every_status_and_effect_is_documented() -> None:
    """The words for where a run stands and for what a step may do are explained."""
    assert first_spans(page("concepts").text) >= set(Status)
    assert first_spans(page("effects").text) >= set(Effect)


@pytest.mark.parametrize("name", sorted(set(hf.__all__) - {"events"}))
def test_a_public_name_is_documented(name: str) -> None:
    """What can be imported can be read about."""
    assert any(re.search(rf"\bhf\.{name}\b", each.text) for each in PAGES)


@pytest.mark.parametrize("name", sorted(hf.testing.__all__))
def test_a_name_of_the_kit_is_documented(name: str) -> None:
    """What users test with is on the page about testing, and among the names."""
    assert re.search(rf"hf\.testing\.{name}\b|`{name}`", page("testing").text)
    assert re.search(rf"`{name}\b", page("api").section("holdfast.testing"))


@pytest.mark.parametrize("name", models.__all__)
def test_a_name_of_the_models_is_documented(name: str) -> None:
    """What speaks to providers is on the page of names, with all that is said to it."""
    assert re.search(rf"`{name}\b", page("api").section("holdfast.models"))


@pytest.mark.parametrize("name", harness.__all__)
def test_a_name_of_the_harnesses_is_documented(name: str) -> None:
    """What takes turns elsewhere is on the page of names, with all that is said to it."""
    assert re.search(rf"`{name}\b", page("api").section("holdfast.harness"))


@pytest.mark.parametrize("of", [hf.Context, hf.Step, hf.Transaction, hf.Runtime, hf.Run, hf.Client, hf.RunInfo])
def test_a_verb_is_documented(of: type) -> None:
    """What can be called on a public object, or read from it, is on the page of names."""
    section = page("api").section(f"hf.{of.__name__}")
    for verb in dir(of):
        if not verb.startswith("_"):
            assert re.search(rf"[`.\s]{verb}[`(]", section), verb


@pytest.mark.parametrize("of", [RunSummary, WorkerInfo, ScheduleInfo])
def test_a_field_of_what_the_client_gives_is_documented(of: type[msgspec.Struct]) -> None:
    """Its table on the page of names has the fields that are there, and no other."""
    section = page("api").section(of.__name__)
    named = {name for row in rows(section) for name in re.findall(r"`(\w+)`", row[0])}
    assert named == {field.name for field in msgspec.structs.fields(of)}


@pytest.mark.parametrize("name", sorted(set(events.__all__) - {"Event"}))
def test_an_event_is_documented(name: str) -> None:
    """Every class that a feed can yield is on the page about the format, or on that about streams."""
    assert any(re.search(rf"`(?:events\.)?{name}`", page(each).text) for each in ("journal", "streams"))
