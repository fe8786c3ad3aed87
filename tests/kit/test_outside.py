"""Whoever a run waits for in `every_crash`: what they may say, and that what they have is asked for."""

from typing import Any

import pytest

from holdfast.core.errors import InvalidInput
from holdfast.testing import NotSurvived, every_crash
from holdfast.testing.killer import TrialFailed
from tests.kit import programs


@pytest.mark.parametrize("said", ["no", 0, 1, "", [True], (True, {"cents": 3})])
async def test_an_answer_that_is_neither_yes_nor_no_is_refused(said: Any) -> None:
    """Before anything is run: a text is not taken for a yes."""
    with pytest.raises(InvalidInput, match="answers= is True, False or a function of the question, not "):
        await every_crash(programs.deal, app=programs.DEALING, answers=said)


@pytest.mark.parametrize("said", ["no", None, 1, (True,), (True, 3), (1, {}), (False, {"cents": 3}, 4)])
async def test_a_function_that_answers_neither_yes_nor_no_is_told_so_at_once(said: Any) -> None:
    """The message has the question, and nobody waits until the trial's time is over."""
    with pytest.raises(InvalidInput, match=r"to 'Pay the invoice\?' the function in answers= said .* return True"):
        await every_crash(programs.paying, answers=lambda question: said)


async def test_what_a_function_that_answers_raises_is_raised() -> None:
    """Its own assertions are a test's too."""

    def fail(question: Any) -> bool:
        raise KeyError(question.text)

    with pytest.raises(KeyError, match="Pay the invoice"):
        await every_crash(programs.paying, answers=fail)


async def test_what_is_answered_with_a_change_that_nobody_may_make_is_refused() -> None:
    """As it would be if a person tried."""
    with pytest.raises(InvalidInput, match="lets nobody change price"):
        await every_crash(programs.paying, answers=lambda question: (True, {"price": 3}))


@pytest.mark.parametrize(
    ("answer", "paid", "processes"),
    [
        (programs.agree_to_less, "paid 700", False), (programs.agree_to_less, "paid 700", True),
        (programs.agree, "paid 900", False), (programs.decide_less, "paid 700", False),
        (programs.decline, "refused", False),
    ],
)  # fmt: skip
async def test_an_answer_may_change_what_is_agreed_to(answer: Any, paid: str, processes: bool) -> None:
    """The run sees the change whenever it is killed."""
    survived = await every_crash(programs.paying, answers=answer, processes=processes)
    assert survived.unbroken.result == paid


@pytest.mark.parametrize("processes", [False, True])
async def test_a_signal_that_no_run_received_is_named_at_the_end(processes: bool) -> None:
    """A name that was misspelt would otherwise test what happens when nobody sends anything."""
    signals = {programs.PAID: 9, "payed": 9, "sent": 3}
    with pytest.raises(NotSurvived, match=r"no run received signal 'payed', 'sent', in any trial") as told:
        await every_crash(programs.clerk, signals=signals, processes=processes)
    assert told.value.unbroken.result == 9


async def test_a_signal_that_is_received_after_a_crash_only_is_not_complained_of() -> None:
    """It was sent for what a crash leaves behind."""
    survived = await every_crash(programs.doubting, signals={programs.SAID: "it was"}, allow_doubt=True)
    assert survived.unbroken.result == "done"


async def test_a_function_of_the_processes_is_told_of_too() -> None:
    """What it said is in what the trial printed."""
    with pytest.raises(TrialFailed, match="the function in answers= said 'yes'"):
        await every_crash(programs.paying, answers=programs.mumble, processes=True)
