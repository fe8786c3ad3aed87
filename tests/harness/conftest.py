"""One provider on a real socket for each module of tests, and harnesses that ask it."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from holdfast.harness import GeminiInteractions, OpenAIResponses
from tests.rigs.provider import Provider

Kept = OpenAIResponses | GeminiInteractions
MakeKept = Callable[..., tuple[str, Kept]]
_names = (f"kept-{number}" for number in count())


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """A loopback provider; what it says is told by model, so that tests do not meet."""
    with Provider() as running:
        yield running


@pytest.fixture(params=["openai", "gemini"])
def kept(request: pytest.FixtureRequest, provider: Provider) -> MakeKept:
    """Make harnesses of each provider that keeps what it generates, with the name of the model they ask."""

    def made(**options: Any) -> tuple[str, Kept]:
        name = next(_names)
        if request.param == "openai":
            return name, OpenAIResponses(name, key="sk-unseen", base_url=provider.openai_url, **options)
        return name, GeminiInteractions(name, key="sk-unseen", base_url=provider.url, **options)

    return made
