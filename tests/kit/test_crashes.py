"""Every crash of a program: one that is right survives them all, and one that is not is told where and why."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import InvalidInput, InvalidValue
from holdfast.testing import Ended, NotSurvived, every_crash
from holdfast.testing.life import Lived
from holdfast.testing.outside import Outside
from holdfast.testing.process_stage import ProcessStage
from holdfast.testing.stage import MemoryStage
from holdfast.testing.verdict import judge
from tests.kit import programs
from tests.kit.programs import world

Seen = list[tuple[list[str], list[str]]]
"""What each life found recorded, and what it performed."""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Begin with an untouched world."""
    programs.forget()
    programs.coin = itertools.count()
    yield
    programs.forget()


async def test_a_program_with_every_kind_of_step_survives_every_crash() -> None:
    """Effects by their policy: charged once, booked under one key, counted exactly, whatever it died around."""
    endings: list[Ended] = []

    def check(ended: Ended) -> None:
        endings.append(ended)
        assert world["charge acme"] == 1
        assert sum(name.startswith("book ") for name in world) == 1
        assert ended.result[3] == 1

    survived = await every_crash(programs.onboard, "acme", app=programs.app, check=check, setup=programs.forget)
    assert survived.unbroken.status == hf.Status.COMPLETED
    assert survived.unbroken.result[:5] == ["Acme", "receipt of acme", "the bank has acme", 1, "at last"]
    # Two around each of its commits and one behind each of its claims.
    kinds = [entry.type for entry in survived.unbroken.entries]
    assert survived.crashes == 2 * (len(kinds) - 1) + 1 + kinds.count("RunResumed")
    assert len({ended.crash for ended in endings}) == survived.crashes + 1


async def test_each_crash_is_before_or_after_one_write_and_none_is_left_out() -> None:
    """The enumeration is the test: a place that is passed over is one that is not tested."""
    crashes: list[str | None] = []
    await every_crash(programs.simple, "acme", check=lambda ended: crashes.append(ended.crash))
    assert crashes == [
        None,
        "after claim 1 of simple",
        "before entry 2 of simple, StepCompleted",
        "after entry 2 of simple, StepCompleted",
        "before entry 3 of simple, StepCompleted",
        "after entry 3 of simple, StepCompleted",
        "before entry 4 of simple, RunFinished",
        "after entry 4 of simple, RunFinished",
    ]


async def test_a_repeat_step_may_happen_twice() -> None:
    """What is declared safe to repeat is no finding: a crash before its entry repeats it, one behind it does not."""
    performed: dict[str | None, int] = {}

    def check(ended: Ended) -> None:
        performed[ended.crash] = ended.performed["0/load#1"]

    await every_crash(programs.simple, "acme", check=check)
    assert performed["before entry 2 of simple, StepCompleted"] == 2
    assert {crash for crash, times in performed.items() if times == 2} == {"before entry 2 of simple, StepCompleted"}


async def test_a_function_that_takes_another_way_each_time_is_found() -> None:
    """Divergence shows only when somebody dies; here somebody does."""
    with pytest.raises(NotSurvived, match=r"it is waiting .diverged: entry 2 recorded") as found:
        await every_crash(programs.fickle)
    assert "does not do the same each time" in str(found.value)
    assert found.value.ended.crash == "after entry 2 of fickle, StepCompleted"


async def test_a_once_step_that_happens_twice_is_found_and_its_check_blamed() -> None:
    """The worst that can happen is told with its reason and its journal."""
    with pytest.raises(NotSurvived) as found:
        await every_crash(programs.denying, "acme")
    lines = str(found.value).splitlines()
    assert lines[0] == (
        "killed before entry 3 of denying, StepCompleted: step 0/pay#1 may happen once, but happened 2 times: "
        "its verify= said that it had not happened, when it had"
    )
    assert lines[1:4] == ["its journal:", "    1 RunStarted denying", "    2 StepStarted 0/pay#1"]
    assert lines[-1] == "0/pay#1 was performed 2 times"


async def test_a_program_that_appends_to_a_global_list_is_found() -> None:
    """Between its steps a function's code runs again, and what it does to the world it does again."""
    with pytest.raises(NotSurvived, match="it is completed with 2, but unbroken it is completed with 1"):
        await every_crash(programs.forgetful, "acme", setup=programs.forget)


async def test_a_result_that_differs_without_any_crash_is_told_as_that() -> None:
    """No crash can be judged by a result that is another one each time."""
    with pytest.raises(NotSurvived, match=r"^unbroken: it is completed with 0 at first, then completed with 1"):
        await every_crash(programs.drifting)


@pytest.mark.parametrize(
    ("program", "standing"), [(programs.doubtful, "failed .InDoubt"), (programs.waiting, "waiting .doubt")]
)
async def test_a_once_step_that_cannot_be_looked_up_is_found_in_doubt(program: Any, standing: str) -> None:
    """That a crash leaves a run in doubt is for its author to know."""
    with pytest.raises(NotSurvived, match=f"it is {standing}") as found:
        await every_crash(program, "acme")
    assert "give it verify=, or say allow_doubt=True" in str(found.value)
    assert found.value.ended.crash == f"after entry 2 of {program.name}, StepStarted"


@pytest.mark.parametrize("program", [programs.doubtful, programs.waiting])
async def test_doubt_can_be_allowed_and_nothing_else_is_with_it(program: Any) -> None:
    """An author who wants the doubt gets it; it is still sent at most once."""
    doubted: list[str | None] = []

    def check(ended: Ended) -> None:
        assert world["sent"] <= 1
        if ended.doubted:
            doubted.append(ended.crash)

    await every_crash(program, "acme", check=check, setup=programs.forget, allow_doubt=True)
    assert doubted == [
        f"after entry 2 of {program.name}, StepStarted",
        f"before entry 3 of {program.name}, StepCompleted",
    ]


async def test_a_program_that_fails_alike_each_time_has_survived() -> None:
    """Failing is an ending like another."""
    survived = await every_crash(programs.failing, "acme")
    assert survived.unbroken.status == hf.Status.FAILED
    assert survived.crashes == 5


async def test_a_program_that_does_not_end_by_itself_is_refused() -> None:
    """Nothing can be compared with a run that waits for a person."""
    with pytest.raises(NotSurvived, match=r"it does not end by itself: it is waiting .doubt"):
        await every_crash(programs.resting)


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize(
    ("app", "missing"), [(None, "'manager'"), (programs.MANAGED, "'clerk'")], ids=["child", "grandchild"]
)
async def test_a_function_that_no_app_of_the_test_has_is_named(
    app: hf.App | None, missing: str, processes: bool
) -> None:
    """A run that waits for a child of unknown code waits for the author of the test."""
    with pytest.raises(NotSurvived) as refused:
        await every_crash(programs.firm, app=app, processes=processes)
    assert refused.value.what.startswith("it does not end by itself: it is waiting (child")
    assert refused.value.what.endswith(
        f". No app of this test has {missing}: give app=hf.App(...) with every function that it starts"
    )


async def test_a_program_that_hangs_is_told_after_its_time() -> None:
    """A hang is a finding, not the end of the test run."""
    with pytest.raises(NotSurvived, match=r"it does not end by itself: it is .* has not ended after 0.2 s"):
        await every_crash(programs.hanging, timeout=0.2)


@pytest.mark.parametrize(
    ("check", "what"), [(lambda ended: False, "returned False"), (lambda ended: 1 / 0, "raised Zero")]
)
async def test_a_check_that_is_not_satisfied_is_told_with_the_crash(check: Any, what: str) -> None:
    """What only the author knows, the author checks."""
    with pytest.raises(NotSurvived, match=f"unbroken: check {what}"):
        await every_crash(programs.simple, "acme", check=check)


async def test_a_crash_runs_no_finally_block() -> None:
    """The dead do not tidy up: what a `finally` does is done by whoever survives."""
    left: dict[str | None, int] = {}

    def check(ended: Ended) -> None:
        left[ended.crash] = len(programs.seen)

    await every_crash(programs.tidy, check=check, setup=programs.forget)
    assert left.pop("before entry 3 of tidy, RunFinished") == 2, "the code had been left already"
    assert set(left.values()) == {1}
    assert len(left) == 5


async def test_what_the_dead_leave_performs_no_step_when_it_is_unwound() -> None:
    """Between two trials nothing happens to the world, whatever the code does when it is left."""
    happened: list[int] = []
    await every_crash(programs.cleaning, check=lambda ended: happened.append(len(programs.seen)))
    performed = [now - before for before, now in itertools.pairwise([1, *happened])]
    # One for each ending, and one more where the crash came before the entry of the cleaning.
    assert performed == [1, 1, 1, 1, 2, 1, 1, 1]


async def test_the_dead_leave_no_thread_and_no_task_behind() -> None:
    """A thousand crashes must not leave a thousand threads."""

    def ours(what: str) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith(f"holdfast {what}")]

    pulses: list[int] = []

    def check(ended: Ended) -> None:
        pulses.append(len(ours("pulse")))

    await every_crash(programs.onboard, "acme", app=programs.app, setup=programs.forget, check=check)
    assert max(pulses) == 1, "more of the dead are kept than the last one"
    for thread in ours(""):
        thread.join(10)
    assert ours("") == []


def test_plain_code_may_ask_too() -> None:
    """A test need not be async."""
    assert asyncio.run(every_crash(programs.simple, "acme")).crashes == 7


async def test_what_is_not_durable_is_refused() -> None:
    """A plain function has nothing that a crash could be survived by."""
    with pytest.raises(InvalidInput, match="wants a durable function"):
        await every_crash(programs.load, "acme")  # type: ignore[arg-type]


def ended(**other: Any) -> Ended:
    """Return an ending."""
    facts: dict[str, Any] = {"status": hf.Status.COMPLETED, "reason": "", "result": 1, "error": None, "entries": []}
    return Ended(**{**facts, "performed": {}, **other})


@pytest.mark.parametrize("stage", [MemoryStage, partial(ProcessStage, alone=True)])
async def test_a_life_knows_what_was_recorded_when_it_began(stage: Any) -> None:
    """What is compared with what it performs is what the dead left, no less and no more."""
    one, two = "0/load#1", "0/load#2"
    first: Seen = [([], []), ([], [one, two])]
    second: Seen = [([], [one]), ([one], [two])]
    third: Seen = [([], [one, two]), ([one, two], [])]

    def play() -> list[Seen]:
        with stage(programs.simple, ["acme"], hf.App(programs.simple), Outside(), seconds=30) as playing:
            found: list[Seen] = []
            while (lives := playing.trial(len(found) + 1)[1])[1:]:
                found.append([(_keys(lived.recorded), _keys(lived.performed)) for lived in lives])
                playing.clear()
            return found

    found = await asyncio.to_thread(play)
    assert [each for each in (first, second, third) if each not in found] == []


def _keys(steps: list[tuple[str, str]]) -> list[str]:
    return [step for _, step in steps]


def test_a_step_performed_again_after_its_outcome_was_recorded_is_found() -> None:
    """The first promise of all: committed work is not repeated."""
    lives = [Lived(performed=[("r", "0/a#1")]), Lived(recorded=[("r", "0/a#1")], performed=[("r", "0/b#1")])]
    judge(ended(crash="here"), ended(), lives, allow_doubt=False)
    lives[1].performed.append(("r", "0/a#1"))
    with pytest.raises(NotSurvived, match=r"^killed here: step 0/a#1 was performed again, although its outcome was"):
        judge(ended(crash="here"), ended(), lives, allow_doubt=True)


class TestProcesses:
    """The same with real processes, on a file, and a real SIGKILL."""

    async def test_a_program_that_is_right_survives_every_kill(self) -> None:
        """What the crashes in memory stand for is what the kills are; the app is found where it stands."""
        crashes: list[str | None] = []
        survived = await every_crash(
            programs.booked, "acme", app=programs.app, processes=True, check=lambda ended: crashes.append(ended.crash)
        )
        assert survived.unbroken.result == "the bank has Acme"
        assert survived.crashes >= 8
        assert crashes[:3] == [None, "at point 1, before a write", "at point 2, after a write"]

    async def test_a_once_step_that_happens_twice_is_found(self) -> None:
        """What is performed is counted across the death of the process that performed it."""
        with pytest.raises(
            NotSurvived, match=r"^killed at point \d+, \w+ a write: step 0/pay#1 may happen once, but"
        ) as found:
            await every_crash(programs.denying, "acme", processes=True)
        assert found.value.ended.performed == {"0/pay#1": 2}

    async def test_a_function_that_another_process_cannot_find_is_refused(self) -> None:
        """A function inside a test exists in the test's process only."""

        @hf.durable
        async def local(ctx: hf.Context) -> None:
            return None

        with pytest.raises(InvalidInput, match="must stand at the top of a module"):
            await every_crash(local, processes=True)


@pytest.mark.parametrize("processes", [False, True])
async def test_what_a_program_waits_for_is_sent_and_answered_whatever_dies(processes: bool) -> None:
    """Each wait gets its value once, children's too, before its time is over."""
    survived = await every_crash(
        programs.deal, app=programs.DEALING, signals={programs.PAID: 9}, answers=True, processes=processes
    )
    assert survived.unbroken.result == [True, 9, 9]
    assert survived.crashes > 20


async def test_who_answers_is_given_the_question() -> None:
    """So that a test may say no to one and yes to another."""
    asked: list[Any] = []

    def refuse(question: Any) -> bool:
        asked.append((question.text, question.show))
        return False

    survived = await every_crash(programs.deal, app=programs.DEALING, answers=refuse)
    assert survived.unbroken.result == [False, None, None]
    assert set(map(str, asked)) == {str(("Go on?", {"price": 9}))}


async def test_a_signal_that_does_not_take_its_value_is_refused() -> None:
    """Before anything is run."""
    with pytest.raises(InvalidValue, match="signal paid"):
        await every_crash(programs.deal, signals={programs.PAID: "nine"})
    with pytest.raises(InvalidInput, match="signals="):
        await every_crash(programs.deal, signals={9: 9})
