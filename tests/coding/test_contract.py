"""The coding harnesses keep the contract of every harness."""

from pathlib import Path

import pytest

from holdfast.testing.harness import Bench, HarnessContract
from tests.coding.bench import CodingBench
from tests.coding.rig import KINDS, Kind


@pytest.mark.parametrize("kind", KINDS)
class TestCodingHarness(HarnessContract):
    """Whether the session is named before it is begun or names itself."""

    @pytest.fixture
    def bench(self, kind: Kind, tmp_path: Path) -> Bench:
        """A stand-in as a real process."""
        return CodingBench(tmp_path, kind)
