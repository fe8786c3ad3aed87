"""Models that ask the rig, of each provider that we speak to ourselves."""

from collections.abc import Callable
from itertools import count
from typing import Final

from holdfast.agent.providers.anthropic import Anthropic
from holdfast.agent.providers.openai import OpenAI
from tests.rigs.provider import Provider

Asked = OpenAI | Anthropic
Make = Callable[..., Asked]
KEY: Final = "sk-never-to-be-seen"
PATIENT: Final = 30.0
IMPATIENT: Final = 0.25
_names = (f"model-{number}" for number in count())


def maker(kind: str, provider: Provider) -> Make:
    """Return what makes models of one kind, each with a name of its own."""

    def made(stall_seconds: float = PATIENT) -> Asked:
        name = next(_names)
        if kind == "openai":
            return OpenAI(name, key=KEY, base_url=provider.openai_url, stall_seconds=stall_seconds)
        return Anthropic(name, key=KEY, base_url=provider.url, stall_seconds=stall_seconds)

    return made


def named(model: Asked) -> str:
    """Return a model's name as its provider knows it."""
    return model.name.partition(":")[2]
