"""Machines that are cut off, databases that are away, wrong clocks, and containers that are all called the same."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.core.ids import RunId
from holdfast.runtime import Runtime
from tests.chaos.caller import Caller, judge
from tests.chaos.crew import SECONDS, Berth, Crew, Hand
from tests.chaos.hand import later, own, tale
from tests.chaos.sites import Site, schema_site
from tests.chaos.verdict import Story, entries_of, faults
from tests.rigs.faketime import AN_HOUR_BACK, FIVE_MINUTES_ON, TEN_YEARS_ON, shifted
from tests.rigs.hosts import Network, container
from tests.rigs.server import Server, in_schema
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.slow
LEASE: Final = 1.0
CUTS, TALES = 2, 24
DECLARED: Final = ("took_over", "returned")
"""What is said only when a worker was declared dead."""


class Scene:
    """Workers, and whoever asks them for something."""

    def __init__(self, crew: Crew, runtime: Runtime) -> None:
        self.crew, self.runtime, self._runs = crew, runtime, dict[int, RunId]()

    def do(self, awaitable: Any) -> Any:
        """Wait for something of the runtime's."""
        return self.runtime.wait(awaitable)

    def begin(self, number: int) -> Hand:
        """Start a tale and return the worker that is about to have its effect."""
        for hand in self.crew.hands:
            hand.halt("effect-begins")
        self._runs[number] = self.do(self.runtime.start(tale, number, "pay", key=("tale", number))).id
        holder = self.crew.first_at("effect-begins")
        for hand in self.crew.hands:
            if hand is not holder:
                hand.order("go")
        return holder

    def end(self, number: int) -> str:
        """Wait for the end of a tale, judge it, and return what is known of its effect."""
        run = self.do(self.runtime.get(self._runs[number]))
        result = self.do(run.result(timeout=SECONDS))
        entries = self.do(entries_of(self.runtime, run.id))
        assert list(faults(Story(number, "pay", entries, result, self.crew.lines_of(number)))) == []
        return str(result[1])

    def serves(self, hand: Hand) -> None:
        """See that a worker serves."""
        assert self.do(self.do(self.runtime.start(own(hand.name))).result(timeout=SECONDS)) == hand.name

    def declared(self) -> list[str]:
        """Return what was said of deaths."""
        return [said for hand in self.crew.hands for said in hand.said if said.startswith(DECLARED)]


def pass_time(seconds: float) -> None:
    """Let time pass: here it is what is tried."""
    threading.Event().wait(seconds)


@pytest.fixture
def network() -> Iterator[Network]:
    """A switch with nothing in it yet."""
    with Network() as standing:
        yield standing


def test_a_machine_that_is_cut_off_is_replaced_and_serves_again_when_it_is_back(
    network: Network, tmp_path: Path
) -> None:
    """It acts once more, since nobody can tell it not to, and nothing of that is written."""
    hosts = {name: network.host() for name in ("near", "far")}
    with Server(listen=(network.gateway,)) as server:
        berth = Berth(in_schema(server.address(host=network.gateway), "hf"), tmp_path / "ledger", LEASE)
        with Crew(berth) as crew, hf.open(in_schema(server.address(), "hf"), work=False) as runtime:
            for name, host in hosts.items():
                crew.launch(name, wrap=host.inside)
            scene = Scene(crew, runtime)
            holder = scene.begin(1)
            hosts[holder.name].cut()
            holder.order("go")
            assert scene.end(1) == "in doubt"
            hosts[holder.name].mend()
            holder.wait_for("returned")
            scene.serves(holder)
            assert scene.end(1) == "in doubt"
            assert [line["who"] for line in crew.lines_of(1) if line["what"] == "pay"] == [holder.name]


def test_what_a_cut_off_machine_had_sent_arrives_too_late_to_be_written(network: Network, tmp_path: Path) -> None:
    """Under load, its last requests reach the server when the cable is mended, and others have its runs."""
    hosts = {name: network.host() for name in ("near", "far")}
    with Server(listen=(network.gateway,)) as server, ThreadPoolExecutor(1) as calling:
        berth = Berth(in_schema(server.address(host=network.gateway), "hf"), tmp_path / "ledger", LEASE)
        with Crew(berth) as crew:
            for name, host in hosts.items():
                crew.launch(name, wrap=host.inside)
            for cut in range(CUTS):
                numbers, lines = range(TALES * cut, TALES * (cut + 1)), len(crew.ledger())
                told = calling.submit(asyncio.run, Caller(crew, at_once=8).tell_all(numbers, ["pay"]))
                wait_until(partial(_more_than, crew, lines + 20 * (cut + 1)), what="a load")
                hosts["near"].cut()
                pass_time(2 * LEASE)
                hosts["near"].mend()
                judge(crew, told.result(timeout=SECONDS))
                crew.hands[0].wait_for("returned")


def _more_than(crew: Crew, lines: int) -> bool:
    return len(crew.ledger()) > lines


def test_a_database_that_is_away_for_longer_than_a_lease_voids_nobody(tmp_path: Path) -> None:
    """The run goes on where it was, under the same lease, and its effect is known."""
    with Server() as server:
        address = in_schema(server.address(), "hf")
        with Crew(Berth(address, tmp_path / "ledger", LEASE)) as crew, hf.open(address, work=False) as runtime:
            crew.launch("a", "b")
            scene = Scene(crew, runtime)
            holder = scene.begin(1)
            server.stop("immediate")
            pass_time(3 * LEASE)
            server.start()
            for hand in crew.hands:
                scene.serves(hand)
            pass_time(1.5 * LEASE)
            holder.order("go")
            assert scene.end(1) == "pay 1"
            assert scene.declared() == []


@pytest.mark.parametrize(
    "clocks",
    [{"back": AN_HOUR_BACK, "on": TEN_YEARS_ON}, {"right": "+0", "on": FIVE_MINUTES_ON}],
    ids=["an hour back, ten years on", "five minutes apart"],
)
def test_wrong_clocks_neither_double_a_lease_nor_ring_a_timer_early(
    postgres_server: Server, clocks: dict[str, str]
) -> None:
    """Deaths are told by pulses and timers by the store's clock, whatever the calendar of a worker says."""
    with schema_site(postgres_server) as site, Crew(Berth(site.address, site.ledger, LEASE)) as crew:
        for name, by in clocks.items():
            crew.launch(name, environment=shifted(by, {}))
        with hf.open(site.address, work=False) as runtime:
            scene = Scene(crew, runtime)
            holder = scene.begin(1)
            timers = [
                scene.do(runtime.start(later(hand.name), number, delay=1.0))
                for number, hand in enumerate(crew.hands, start=2)
            ]
            for number, run in enumerate(timers, start=2):
                assert scene.do(run.result(timeout=SECONDS)) == 2
                _started_in_time(scene.do(entries_of(runtime, run.id)), crew.lines_of(number))
            holder.order("go")
            assert scene.end(1) == "pay 1"
            assert scene.declared() == []


def _started_in_time(entries: list[Any], lines: list[Any]) -> None:
    """The first attempt came a second after the start, the second when the journal had said, and not much later."""
    first, second = (line["t"] for line in lines if line["what"] == "insist")
    (failed,) = [entry for entry in entries if entry.type == "StepFailed"]
    pause = (failed.retry_at - failed.at) / 1e6
    assert failed.at - entries[0].at >= 1e6
    assert pause - 0.05 <= second - first <= pause + 5


@pytest.mark.parametrize("apart", [False, True], ids=["one folder for locks", "a folder each"])
def test_two_containers_of_one_name_do_not_take_each_other_for_dead(site: Site, tmp_path: Path, apart: bool) -> None:
    """Host name and process id are the same in both; the lock and the pulse tell them apart, and the dead from them."""
    with Crew(Berth(site.address, site.ledger, LEASE)) as crew:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            own_folder = {"XDG_RUNTIME_DIR": str(tmp_path / name)} if apart else None
            crew.launch(name, wrap=partial(container, hostname="worker"), environment=own_folder)
        with hf.open(site.address, work=False) as runtime:
            scene = Scene(crew, runtime)
            holder = scene.begin(1)
            abouts = [(worker.host, worker.pid) for worker in scene.do(runtime.client.workers())]
            assert abouts == [("worker", 1), ("worker", 1)]
            pass_time(2.5 * LEASE)
            assert scene.declared() == []
            crew.hands.remove(holder)
            holder.kill()
            assert scene.end(1) == "in doubt"
            wait_until(lambda: len(scene.declared()) == 1, what="the other has taken over")
