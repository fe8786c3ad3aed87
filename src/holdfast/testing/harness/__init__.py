"""The contract of every harness, as tests: subclass `HarnessContract` and say what your bench is."""

from collections.abc import Iterator

import pytest

from holdfast.testing.harness import checks
from holdfast.testing.harness.bench import Bench, Creation, Line

__all__ = ["Bench", "Creation", "HarnessContract", "Line"]


class HarnessContract:
    """Everything that an agent relies on in a harness.

    Give your subclass a `bench` fixture: your harness, and the service behind it as far as a test must have it in
    hand. The tests are async: pytest needs `anyio_mode = "auto"`.
    """

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Return a harness and its service."""
        raise NotImplementedError("a harness's contract needs a `bench` fixture")

    @pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
    async def test_it_keeps_the_contract(self, bench: Bench, check: checks.Check) -> None:
        """Each check is a promise of every harness."""
        await check(bench)
