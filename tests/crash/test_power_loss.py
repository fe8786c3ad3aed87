"""Power loss: whatever disk it leaves, nothing acknowledged is missing and every run goes on to its result."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from holdfast.testing.disk import Metadata
from holdfast.testing.killer import AtPoint, Killer
from tests.chaos.kills import new_killer, orders, scratch
from tests.chaos.losses import Loss, Refused

IMAGES = 40


@pytest.fixture(scope="module")
def killers() -> Iterator[tuple[Killer, Killer]]:
    """Two servers, one for each core."""
    with new_killer() as one, new_killer() as other:
        yield one, other


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where programs are recorded and their images taken up."""
    with scratch() as folder:
        yield folder


@pytest.mark.parametrize("metadata", list(Metadata))
def test_nothing_acknowledged_is_lost_with_the_power(
    killers: tuple[Killer, Killer], folder: Path, metadata: Metadata
) -> None:
    """Results, events and started runs outlive a power loss at any moment, in shared commits and in a recovery; `once`
    stays once, and keys stay the same."""

    def check(killer: Killer, runs: int) -> list[Refused | None]:
        death = AtPoint(60) if runs == 1 else None
        loss = Loss(killer, folder / str(runs), orders(runs), death=death)
        assert len(loss.recording.acks) > 30 * runs
        return [loss.verdict(image) for image in loss.images(seed=runs, limit=IMAGES, metadata=metadata)]

    with ThreadPoolExecutor(2) as threads:
        checked = [each for half in threads.map(check, killers, (1, 3)) for each in half]
    refused = [each for each in checked if each is not None]
    assert not refused, f"{len(refused)} of {len(checked)} images: {list(islice(refused, 2))}"
    assert len(checked) == 2 * IMAGES
