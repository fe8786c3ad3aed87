"""The public names are a promise: none comes or goes by accident."""

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import checkpoint, events, harness, mcp, models, server, testing
from holdfast.integrations import openai_agents, pydantic_ai

SNAPSHOT = Path(__file__).with_name("public_names.txt")


MODULES = {
    "holdfast": holdfast,
    "holdfast.checkpoint": checkpoint,
    "holdfast.events": events,
    "holdfast.harness": harness,
    "holdfast.integrations.openai_agents": openai_agents,
    "holdfast.integrations.pydantic_ai": pydantic_ai,
    "holdfast.mcp": mcp,
    "holdfast.models": models,
    "holdfast.server": server,
    "holdfast.testing": testing,
}


def names() -> list[str]:
    """Return every public name, sorted."""
    return sorted(f"{place}.{name}" for place, module in MODULES.items() for name in module.__all__)


def test_the_public_names_are_those_that_were_agreed() -> None:
    """A name that is added or taken away is written down here too, and in the changelog."""
    assert names() == SNAPSHOT.read_text("utf-8").split()


def test_every_public_name_can_be_used() -> None:
    """What `__all__` lists is there."""
    assert all(hasattr(module, name) for module in MODULES.values() for name in module.__all__)


def test_the_kit_is_an_attribute_that_is_loaded_when_used() -> None:
    """`hf.testing` works after `import holdfast`, and a program that does not use it does not pay for it."""
    look = "import sys, holdfast as hf; before = 'holdfast.testing' in sys.modules; print(before, hf.testing.__name__)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False holdfast.testing\n"
    with pytest.raises(AttributeError, match="no attribute 'tasting'"):
        getattr(holdfast, "tasting")  # noqa: B009 - mypy would refuse it


def test_there_are_fewer_than_forty_names() -> None:
    """A newcomer can read the list; what grows beyond it belongs into a module of its own."""
    assert len(holdfast.__all__) < 40
