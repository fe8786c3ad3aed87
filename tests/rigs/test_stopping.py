"""What is stopped or frozen does nothing, its children neither, and goes on as if nothing had been."""

import os
import signal

from tests.rigs.echo import echoing
from tests.rigs.stopping import Freezer, family, state, stopped


def test_a_stopped_tree_answers_only_after_it_goes_on() -> None:
    """A signal stops the process and its child."""
    with echoing() as pair:
        assert pair.answers(within=10) == [True, True]
        with stopped(pair.pid):
            assert pair.answers(within=0.1) == [False, False]
        assert pair.hears(within=10) == [True, True]


def test_a_frozen_group_answers_only_after_it_thaws() -> None:
    """The freezer holds what is inside and what it started before."""
    with echoing() as pair, Freezer() as freezer:
        assert pair.answers(within=10) == [True, True]
        for member in family(pair.pid):
            freezer.add(member)
        freezer.freeze()
        assert pair.answers(within=0.1) == [False, False]
        freezer.thaw()
        assert pair.hears(within=10) == [True, True]


def test_a_frozen_process_does_not_know_that_it_was() -> None:
    """A process that was stopped by a signal can be seen to be stopped; a frozen one cannot."""
    with echoing() as pair, Freezer() as freezer:
        assert pair.answers(within=10) == [True, True]
        freezer.add(pair.pid)
        freezer.freeze()
        assert state(pair.pid) != "T"
        # A signal is taken only after the thaw: freezing is not stopping.
        os.kill(pair.pid, signal.SIGCONT)
        assert pair.answers(within=0.1) == [False, True]
        freezer.thaw()
        assert pair.lines[0].recv(1) == b"!"
