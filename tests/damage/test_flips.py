"""Bits flipped anywhere in the files that a killed process left behind."""

from collections.abc import Iterator

import pytest

from holdfast.testing.killer import Killer
from tests.chaos.archive import keys_of
from tests.chaos.flips import Archive, Flip, Stage, archives, campaign, certain_bytes, draw, new_killer
from tests.chaos.kills import scratch

_SEED = 20261115


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """The server of these trials."""
    with new_killer() as killer:
        yield killer


@pytest.fixture(scope="module")
def made(killer: Killer) -> Iterator[list[tuple[Archive, Archive]]]:
    """Archives that nobody may change."""
    with archives(killer, [1, 2]) as made:
        yield made


def test_sixty_flips_give_the_same_answers_a_named_run_or_a_refusal() -> None:
    """P7: damage is never a wrong answer, a second run, an effect twice, a nameless error or a wait without end."""
    result = campaign(_SEED, 60, lambda step: None)
    assert result.failures == []
    assert result.counts["flips"] == 60
    assert min(result.counts[what] for what in ("in_log", "same_answers", "named_runs", "refused")) > 0


def test_a_store_without_a_flip_is_not_accused(killer: Killer, made: list[tuple[Archive, Archive]]) -> None:
    """A check that accuses everybody catches nobody: undamaged, every run gives its answer and verify is silent."""
    with scratch() as folder:
        for archive in (archive for pair in made for archive in pair):
            said = Stage(killer, folder / "trial").play(archive, None)
            assert (said.wrong, said.refused, said.named, said.findings) == ([], "", {}, 0)
            assert said.same == len(keys_of(archive.size))


def test_a_twin_that_looks_at_no_checksum_is_caught(killer: Killer, made: list[tuple[Archive, Archive]]) -> None:
    """A check that lets a broken twin pass would let a broken Holdfast pass."""
    with scratch() as folder:
        stage = Stage(killer, folder / "trial", twin="blind")
        assert any(stage.play(*draw(f"{_SEED}/{number}", made)).wrong for number in range(2000))


def test_a_log_is_flipped_where_a_crash_cannot_have_torn_it(made: list[tuple[Archive, Archive]]) -> None:
    """What stands in the last three commits of a log may be a torn end, so a flip there proves nothing."""
    for logged, filed in made:
        raw = logged.log.read_bytes()
        assert 0 < certain_bytes(raw) < len(raw)
        assert not filed.log.exists() or filed.log.stat().st_size == 0
    drawn = [draw(f"{_SEED}/{number}", made) for number in range(300)]
    flips: list[tuple[Archive, Flip]] = [(of, flip) for of, flip in drawn if flip.file == of.log.name]
    assert 30 < len(flips) < 90
    assert all(flip.place < certain_bytes(of.log.read_bytes()) for of, flip in flips)
