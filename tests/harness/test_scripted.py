"""The scripted harness keeps the contract of every harness, in each of its kinds."""

from typing import Any

import pytest

from holdfast.testing.harness import Bench, HarnessContract
from tests.harness.benches import ScriptedBench


@pytest.mark.parametrize("options", [{}, {"keyed": True}, {"finds": True}], ids=["plain", "keyed", "finding"])
class TestScriptedHarness(HarnessContract):
    """Without a key it doubts, with one it sends again, and what can be looked up is never in doubt."""

    @pytest.fixture
    def bench(self, options: dict[str, Any]) -> Bench:
        """A provider in this process."""
        return ScriptedBench(**options)
