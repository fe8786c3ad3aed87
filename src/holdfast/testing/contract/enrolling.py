"""What `enrol`, `versions` and a claim by version promise: an order of versions, and nobody given what is not his."""

import asyncio

import pytest

from holdfast.core.status import Status
from holdfast.core.version import CodeVersion, Served, begun, refusing
from holdfast.store.protocol import Store
from holdfast.store.value import RowChange, RunFilter
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.story import NAME, Pen, a_lease, a_post, a_run, a_worker


def _version(code: str, name: str = NAME) -> CodeVersion:
    return CodeVersion(name=name, code=code, source=f"source of {code}")


class VersionContract:
    """Versions of code have an order, and a run says which of them may drive it."""

    async def test_versions_keep_the_order_in_which_they_were_first_known(self, store: Store) -> None:
        """Forward is what came later; coming again changes nothing."""
        (first,) = await store.enrol([_version("2026.2")])
        (second,) = await store.enrol([_version("2026.1")])
        again, third = await store.enrol([_version("2026.2"), _version("2026.3")])
        assert again == first
        assert 0 < first.place < second.place < third.place
        assert list(await store.versions(NAME)) == [first, second, third]
        assert first.source == "source of 2026.2"

    async def test_versions_of_names_have_nothing_to_do_with_each_other(self, store: Store) -> None:
        """The same version of two functions is known twice."""
        one, other = await store.enrol([_version("1"), _version("1", "other")])
        assert (one.name, other.name) == (NAME, "other")
        assert list(await store.versions("other")) == [other]
        assert list(await store.versions("unknown")) == []

    async def test_workers_that_enrol_at_once_are_told_the_same(self, store: Store) -> None:
        """Whoever came first, all of them agree on it."""
        answers = await asyncio.gather(*(store.enrol([_version(code), _version("shared")]) for code in "abcde"))
        assert len({answer[1] for answer in answers}) == 1
        assert len(await store.versions(NAME)) == 6

    async def test_a_run_that_a_later_version_has_is_not_given_to_an_earlier_one(self, store: Store) -> None:
        """Its own version and what came after that may have it; a token alone says nothing of a place."""
        pen = Pen(store, await a_lease(store))
        change = RowChange(status=Status.WAITING, due_at=store.now(), refused=begun("v2", 7, pin=False))
        await store.commit(pen.lease, pen.next("rest", change=change))
        worker, run = await a_worker(store), pen.lease.row.run
        for narrowed in (None, [run]):
            assert await store.claim(worker, {NAME: Served("v1", place=6)}, limit=9, runs=narrowed) == []
        for served in (Served("v2", place=7), Served("v3", place=8), "v4"):
            (lease,) = await store.claim(worker, {NAME: served}, limit=9)
            assert lease.row.refused == begun("v2", 7, pin=False)
            await store.release(worker)

    async def test_a_pinned_run_is_given_to_its_version_only(self, store: Store) -> None:
        """Neither an earlier nor a later one has it, however it is asked for; a refusal beside that counts as well."""
        new = a_run(store, code="v1", pin=True)
        await store.create(new)
        worker = await a_worker(store)
        for narrowed in (None, [new.row.run]):
            for served in (Served("v2", place=9), Served("v0", place=1), "v2"):
                assert await store.claim(worker, {NAME: served}, limit=9, runs=narrowed) == []
        (lease,) = await store.claim(worker, {NAME: Served("v1.x", code="v1", place=3)}, limit=9)
        pen = Pen(store, lease)
        change = RowChange(status=Status.WAITING, due_at=store.now(), refused=refusing(lease.row.refused, "v1.x"))
        await store.commit(lease, pen.next("rest", change=change))
        assert await store.claim(worker, {NAME: Served("v1.x", code="v1", place=3)}, limit=9) == []
        assert len(await store.claim(worker, {NAME: Served("v1.y", code="v1", place=3)}, limit=9)) == 1

    @pytest.mark.parametrize("control", [False, True], ids=["signal", "control"])
    async def test_a_post_wakes_a_run_only_for_who_may_have_it_but_a_control_does_for_all(
        self, store: Store, control: bool
    ) -> None:
        """What is asked of a run does not depend on its code: whoever serves its name may answer."""
        pen = Pen(store, await a_lease(store))
        change = RowChange(status=Status.WAITING, refused=begun("v2", 7, pin=False))
        await store.commit(pen.lease, pen.next("rest", change=change, inbox=0))
        await store.post(a_post(pen.lease.row.run, "p", control=control))
        worker = await a_worker(store)
        assert len(await store.claim(worker, {NAME: Served("v1", place=6)}, limit=9)) == int(control)
        await store.release(worker)
        assert len(await store.claim(worker, {NAME: Served("v2", place=7)}, limit=9)) == 1

    async def test_the_longest_due_goes_first_whatever_code_it_wants(self, store: Store, clock: MovingClock) -> None:
        """Runs of several names and of several versions wait in one line."""
        new = [
            a_run(store, name=name, delay_seconds=delay, code=code, place=place)
            for delay, (name, code, place) in enumerate([(NAME, "v1", 1), ("other", "v1", 2), (NAME, "v2", 3)] * 3)
        ]
        for run in reversed(new):
            await store.create(run)
        clock.advance(60)
        served = {NAME: Served("v3", place=4), "other": Served("v3", place=5)}
        taken = await store.claim(await a_worker(store), served, limit=7)
        assert [lease.row.run for lease in taken] == [run.row.run for run in new[:7]]

    async def test_open_runs_are_listed_without_those_that_have_ended(self, store: Store) -> None:
        """Whoever asks what is under way is not shown the past."""
        rests, ends = Pen(store, await a_lease(store)), Pen(store, await a_lease(store))
        await store.commit(rests.lease, rests.next("rest", change=RowChange(status=Status.PAUSED)))
        await store.commit(ends.lease, ends.next("end", change=RowChange(status=Status.FAILED)))
        assert [row.run for row in await store.list(RunFilter(open=True))] == [rests.lease.row.run]
        assert len(await store.list(RunFilter())) == 2

    async def test_a_worker_that_registers_again_says_something_else_of_itself(self, store: Store) -> None:
        """It may come to serve more than it began with; its pulse and its leases are what they were."""
        worker = await a_worker(store)
        await store.pulse(worker)
        (before,) = await store.workers()
        await store.register(worker, lock=None, about={"serves": "more"})
        (after,) = await store.workers()
        assert (after.about, after.pulse, after.started_at) == ({"serves": "more"}, before.pulse, before.started_at)
