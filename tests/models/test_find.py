"""Models by name, and what they cost."""

import asyncio
import subprocess
import sys
import threading
from importlib import import_module

import pytest

import holdfast as hf
from holdfast.agent.providers import find as named
from holdfast.agent.providers.prices import priced
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Usage
from holdfast.models import Anthropic, Model, OpenAI, PydanticAI, find
from holdfast.store.memory import MemoryStore


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("openai:gpt-5-mini", OpenAI),
        ("anthropic:claude-sonnet-4-5", Anthropic),
        ("pydantic-ai:google:gemini-2.5-flash", PydanticAI),
    ],
)
def test_a_model_is_found_by_its_name(name: str, kind: type[Model]) -> None:
    """Nothing is asked and no key is needed until it is used."""
    found = find(name)
    assert isinstance(found, kind)
    assert found.name == name
    assert named(name).name == name


class Importing:
    """Stands before all importers, and notes in which thread a package is looked for; it is not found."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.threads: list[threading.Thread] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Note who looks for the package, and refuse it; leave all else to the others."""
        if name == self._package:
            self.threads.append(threading.current_thread())
            raise ModuleNotFoundError(f"{name} was looked for")


async def test_a_model_given_by_name_is_not_imported_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider's SDK takes seconds to import, in which no other run could go on."""
    importing = Importing("anthropic")
    monkeypatch.delitem(sys.modules, "anthropic", raising=False)
    monkeypatch.setattr(sys, "meta_path", [importing, *sys.meta_path])
    clerk = hf.Agent("clerk", model="anthropic:claude-sonnet-4-5")
    async with hf.open(MemoryStore(), hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "hi")
        with pytest.raises(hf.RunError, match="anthropic was looked for"):
            await run.result(timeout=20)
    assert importing.threads
    assert threading.main_thread() not in importing.threads


async def test_runs_that_begin_at_once_share_one_model() -> None:
    """A model has connections and a lane of its own: it is found once."""
    clerk = hf.Agent("clerk", model="openai:gpt-5-mini")
    found = await asyncio.gather(*(clerk.find_model() for _ in range(8)))
    assert {id(one) for one in found} == {id(clerk.model)}


@pytest.mark.parametrize("name", ["gpt-5", "openai:", ":x", "", "mistral:large"])
def test_a_name_that_is_none_is_refused_with_what_to_write(name: str) -> None:
    """An unknown provider is pointed to pydantic-ai."""
    with pytest.raises(InvalidInput, match=r"openai:gpt-5-mini|pydantic-ai:mistral:large"):
        find(name)


@pytest.mark.parametrize(("name", "package"), [("Anthropic", "anthropic"), ("PydanticAI", "pydantic-ai")])
def test_a_missing_package_is_named_with_how_to_install_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name and by class alike, the error says what to type."""
    module = f"holdfast.agent.providers.{package.replace('-', '_')}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    for asked in (lambda: getattr(hf.models, name), lambda: find(f"{package}:openai:m")):
        with pytest.raises(InvalidInput, match=rf"pip install 'holdfast\[{package}\]'"):
            asked()


def test_models_are_loaded_when_they_are_used() -> None:
    """A program that imports Holdfast pays for no provider, and one that names a model not for the others."""
    look = (
        "import sys, holdfast as hf; print('holdfast.models' in sys.modules, hf.models.OpenAI.__name__, "
        "[name for name in ('anthropic', 'openai', 'pydantic_ai', 'genai_prices') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False OpenAI []\n"


def test_a_price_is_what_the_provider_asks() -> None:
    """A million tokens in and out of a model with a known price, and fewer where some were in its cache."""
    prices = import_module("genai_prices")
    used = prices.Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    asked = prices.calc_price(used, "gpt-4o", provider_id="openai").total_price
    usage = Usage(input=1_000_000, output=1_000_000)
    assert priced(usage, "gpt-4o", url="https://api.openai.com/v1").cost == int(asked * 10**9)
    cached = priced(Usage(input=1_000_000, output=1_000_000, cached=500_000), "gpt-4o", provider="openai").cost
    assert cached is not None
    assert 0 < cached < int(asked * 10**9)
    assert OpenAI("gpt-4o", base_url="https://api.openai.com/v1").cost_of(usage) == int(asked * 10**9)


@pytest.mark.parametrize(
    ("usage", "model", "url"),
    [
        (Usage(input=1, output=1), "gpt-4o", "http://127.0.0.1:1/v1"),
        (Usage(input=1, output=1), "no-such-model", "https://api.openai.com/v1"),
        (Usage(input=1), "gpt-4o", "https://api.openai.com/v1"),
        (Usage(), "gpt-4o", "https://api.openai.com/v1"),
    ],
)
def test_a_price_that_nobody_knows_is_unknown(usage: Usage, model: str, url: str) -> None:
    """An endpoint of your own, an unknown model, a usage that was not told: None, never nothing."""
    assert priced(usage, model, url=url) == usage
    assert usage.cost is None


def test_without_the_package_every_price_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are an extra; without them nothing fails."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert priced(Usage(input=1, output=1), "gpt-4o", provider="openai").cost is None
