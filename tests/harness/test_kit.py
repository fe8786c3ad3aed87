"""The kit for harnesses catches what it is there to catch: each broken twin fails the check that is made for it."""

import pytest

from holdfast.testing.harness import checks
from holdfast.testing.scripted_harness import ScriptedHarness
from tests.harness import twins
from tests.harness.benches import ScriptedBench

CAUGHT = [
    (twins.Forking, checks.wherever_a_worker_dies_the_turn_is_that_of_an_unbroken_one),
    (twins.Recreating, checks.what_has_ended_is_found_again_as_it_was),
    (twins.Recreating, checks.whatever_is_cut_off_is_said_once),
    (twins.Recreating, checks.wherever_a_worker_dies_the_turn_is_that_of_an_unbroken_one),
    (twins.Forgetful, checks.it_reports_a_handle_and_then_its_end),
    (twins.Hopeful, checks.whatever_is_cut_off_is_said_once),
    (twins.Repeating, checks.it_gives_strictly_what_follows_an_event),
    (twins.Repeating, checks.whatever_is_cut_off_is_said_once),
    (twins.Repeating, checks.what_is_cut_off_under_way_is_shown_once),
    (twins.Gullible, checks.it_takes_no_cursor_but_its_own),
    (twins.Boastful, checks.a_cap_that_is_reached_is_a_limit),
    (twins.Denying, checks.what_was_created_is_never_denied),
    (twins.Keyless, checks.one_key_is_one_creation),
    (twins.Stubborn, checks.whatever_is_cut_off_is_said_once),
    (twins.Deaf, checks.cancelling_a_run_cancels_what_it_began),
    (twins.Jealous, checks.a_shutdown_cancels_nothing_and_another_process_goes_on),
]


@pytest.mark.parametrize(("twin", "check"), CAUGHT, ids=[f"{twin.__name__}-{check.__name__}" for twin, check in CAUGHT])
async def test_a_broken_harness_is_caught(twin: type[ScriptedHarness], check: checks.Check) -> None:
    """A fault that a real harness had does not pass; the scripted one that it is a twin of does."""
    with pytest.raises(AssertionError):
        await check(ScriptedBench(twin))
