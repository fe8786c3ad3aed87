"""The rules of a checkpoint that need no store: who may say what becomes of it, when a save is due, and its key."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.checkpoint import Window, check_place, checkpoint_key, checkpoint_of, effect_key, effect_step
from holdfast.core.errors import InvalidInput, Lost, StoreUnavailable
from holdfast.engine.verdict import Verdict, verdict

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Verdict.COMPLETE),
        (KeyboardInterrupt(), Verdict.KEEP),
        (SystemExit(0), Verdict.KEEP),
        (asyncio.CancelledError(), Verdict.KEEP),
        (GeneratorExit(), Verdict.KEEP),
        (Lost(), Verdict.KEEP),
        (StoreUnavailable("full"), Verdict.KEEP),
        (BaseExceptionGroup("", [KeyboardInterrupt(), asyncio.CancelledError()]), Verdict.KEEP),
        (BaseExceptionGroup("", [KeyboardInterrupt(), ValueError()]), Verdict.FAIL),
        (ValueError(), Verdict.FAIL),
        (TimeoutError(), Verdict.FAIL),
    ],
)
def test_success_completes_a_shutdown_keeps_and_anything_else_fails(
    error: BaseException | None, outcome: Verdict
) -> None:
    """The one rule for how a loop is left."""
    assert verdict(error) is outcome


def test_only_a_save_that_succeeded_uses_up_the_window() -> None:
    """The clock of the throttle begins with the last success, and with nothing else."""
    window = Window(10.0)
    assert window.left(0.0) <= 0
    assert window.left(100.0) <= 0
    window.saved(100.0)
    assert window.left(104.0) == 6.0
    assert window.left(110.0) <= 0


@given(TEXT, st.integers(1, 10_000))
def test_a_key_tells_which_checkpoint_it_is_of(checkpoint: str, life: int) -> None:
    """Slashes, percent signs and colons in an id make no other id of it."""
    assert checkpoint_of(checkpoint_key(checkpoint, life)) == checkpoint


@pytest.mark.parametrize("key", [None, "", "ticket-42", "holdfast:checkpoint", "holdfast:checkpoint/a/b", "x/a/1"])
def test_any_other_key_is_of_none(key: str | None) -> None:
    """A run that is no checkpoint is not taken for one."""
    assert checkpoint_of(key) is None


@given(TEXT)
def test_the_step_of_an_effect_tells_its_key(key: str) -> None:
    """People are shown the name that they gave."""
    assert effect_key(effect_step(key)) == key


@pytest.mark.parametrize(
    ("iteration", "phase"), [(-1, None), (True, None), ("1", None), (1, ""), (1, 7), (1, "x" * 257)]
)
def test_a_place_in_a_loop_that_cannot_be_kept_is_refused(iteration: int, phase: str) -> None:
    """By name, and before anything is written."""
    with pytest.raises(InvalidInput, match=r"iteration|phase"):
        check_place(iteration, phase)
