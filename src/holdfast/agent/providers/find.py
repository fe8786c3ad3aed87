"""A model by its name, `provider:model`; what it needs is loaded when it is asked for."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from msgspec import Struct

from holdfast.agent.model import Model
from holdfast.core.errors import InvalidInput


class _Provider(Struct, frozen=True):
    module: str
    name: str
    needs: str = ""
    """The package that must be installed."""
    extra: str = ""


_PROVIDERS: Final = {
    "openai": _Provider("holdfast.agent.providers.openai", "OpenAI"),
    "anthropic": _Provider("holdfast.agent.providers.anthropic", "Anthropic", "anthropic", "anthropic"),
    "pydantic-ai": _Provider("holdfast.agent.providers.pydantic_ai", "PydanticAI", "pydantic_ai", "pydantic-ai"),
}


def find(name: str) -> Model:
    """Return the model of a name: `openai:gpt-5-mini`, `anthropic:claude-…`, `pydantic-ai:google:gemini-…`.

    Raises:
        InvalidInput: there is no such provider, or the package that speaks to it is not installed.
    """
    provider, _, model = name.partition(":")
    if not provider or not model:
        raise InvalidInput(f"a model is named provider:model, such as openai:gpt-5-mini, not {name!r}")
    if provider not in _PROVIDERS:
        known = ", ".join(f"{each}:" for each in _PROVIDERS)
        raise InvalidInput(
            f"no provider {provider!r} in {name!r}; there are {known} and others as pydantic-ai:{name}",
        )
    return maker(provider)(model)


def maker(provider: str) -> Callable[[str], Model]:
    """Return the class of a provider's models.

    Raises:
        InvalidInput: the package that speaks to it is not installed.
    """
    known = _PROVIDERS[provider]
    if known.needs and find_spec(known.needs) is None:
        raise InvalidInput(
            f"{provider}: models need the package {known.needs}; install it with: pip install 'holdfast[{known.extra}]'"
        )
    made: Callable[[str], Model] = getattr(import_module(known.module), known.name)
    return made
