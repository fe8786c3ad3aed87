"""The pace of a lane: what a provider says of its limits becomes a time for each request, and nothing more is sent."""

import heapq
from collections.abc import Callable

import pytest

from holdfast.agent.lane import Lane, RateSeen, Window
from holdfast.agent.pace import PACE, Pace
from tests.rigs.provider.metered import most_in_a_second

SECOND = 1_000_000
_TRIP = 50_000
"""How long an answer takes."""


class Bucket:
    """A provider of so many requests a second, with a bucket that fills evenly or a window that begins anew."""

    def __init__(self, limit: int, *, tells: bool = True, windows: bool = False) -> None:
        self._limit, self._tells, self._windows = limit, tells, windows
        self._level, self._at = float(limit), 0
        self.arrived: list[float] = []
        self.refused: list[float] = []

    def ask(self, now: int) -> RateSeen:
        """Answer a request."""
        self.arrived.append(now / SECOND)
        if not self._windows:
            self._level = min(float(self._limit), self._level + (now - self._at) * self._limit / SECOND)
        elif now // SECOND > self._at // SECOND:
            self._level = float(self._limit)
        self._at = now
        busy = self._level < 1
        if busy:
            self.refused.append(now / SECOND)
        else:
            self._level -= 1
        reset = (SECOND - now % SECOND) / SECOND if self._windows else (self._limit - self._level) / self._limit
        seen = Window(self._limit, int(self._level), reset) if self._tells else Window()
        return RateSeen(requests=seen, busy=busy, retry_after=1.0 if busy else None)


def play(provider: Bucket, lanes: list[Lane], count: int) -> list[str]:
    """Send so many requests through lanes that share a provider, all asked for at once; return who went, in order."""
    asking = [(0, number, f"{number}") for number in range(count)]
    answers: list[tuple[int, int, str, RateSeen]] = []
    went, ticks = [], count
    while asking or answers:
        ticks += 1
        if answers and (not asking or answers[0][0] <= asking[0][0]):
            now, _, who, seen = heapq.heappop(answers)
            lanes[int(who) % len(lanes)].see(seen, now)
            if seen.busy:
                heapq.heappush(asking, (now + SECOND, ticks, who))
            continue
        now, _, who = heapq.heappop(asking)
        again_at = lanes[int(who) % len(lanes)].ask(who, 0, now)
        if again_at is None:
            went.append(who)
            heapq.heappush(answers, (now + _TRIP, ticks, who, provider.ask(now)))
        else:
            assert again_at > now
            heapq.heappush(asking, (again_at, ticks, who))
    return went


@pytest.mark.parametrize("windows", [False, True])
def test_a_rate_that_was_learnt_is_never_passed(windows: bool) -> None:
    """Of 400 requests at once only those that went before anything was known are refused."""
    provider = Bucket(20, windows=windows)
    play(provider, [Lane()], 400)
    assert most_in_a_second(provider.arrived, after=1.0) <= 24
    assert len(provider.arrived) - len(provider.refused) == 400
    assert [at for at in provider.refused if at >= 1.0] == []
    assert provider.arrived[-1] < 30


def test_refusals_alone_teach_too() -> None:
    """A provider that tells nothing but that it is too much is asked about as often as it answers."""
    provider = Bucket(20, tells=False)
    play(provider, [Lane()], 400)
    assert len(provider.arrived) - len(provider.refused) == 400
    assert len([at for at in provider.refused if at >= 1.0]) < 20
    assert provider.arrived[-1] < 60


@pytest.mark.parametrize("tells", [True, False])
def test_several_processes_of_one_key_steer_by_refusals(tells: bool) -> None:
    """Each knows the rate of all, and goes slower where it is refused: together they get on, and nearly unrefused."""
    provider = Bucket(20, tells=tells)
    play(provider, [Lane(), Lane(), Lane()], 400)
    assert len(provider.arrived) - len(provider.refused) == 400
    assert len([at for at in provider.refused if at >= 2.0]) < 100
    assert provider.arrived[-1] < 90


def test_a_lane_of_which_nothing_is_known_does_not_wait() -> None:
    """Nor one whose provider says that all is there."""
    lane = Lane()
    assert [lane.ask(str(number), 1000, 0) for number in range(500)] == [None] * 500
    lane.see(RateSeen(requests=Window(20, 20, 0.0)), 0)
    assert lane.ask("more", 1000, 0) is None


def known(limit: int = 20, remaining: int = 0, reset: float = 1.0) -> Lane:
    """Return a lane whose provider said this at time 0."""
    lane = Lane()
    lane.see(RateSeen(requests=Window(limit, remaining, reset)), 0)
    return lane


def test_a_lane_that_is_told_nothing_does_not_grow() -> None:
    """A model need not tell of its answers: what was sent long ago is forgotten all the same."""
    lane = Lane()
    for second in range(1000):
        assert lane.ask(f"{second}", 0, second * SECOND) is None
    assert len(lane._sent) <= 11


def test_an_answer_to_what_was_forgotten_is_not_taken_for_that_of_a_later_request() -> None:
    """Four were sent since, and the provider has counted none of them: of its seven three are left."""
    lane = Lane()
    assert lane.ask("slow", 0, 0) is None
    for who in "abcd":
        assert lane.ask(who, 0, 11 * SECOND) is None
    lane.see(RateSeen(requests=Window(10, 7, 3.0)), 11 * SECOND)
    assert lane.requests.ready_at(3) <= 11 * SECOND < lane.requests.ready_at(4)


def test_places_are_kept_in_the_order_of_asking() -> None:
    """Who asked first goes first, each at the time that was promised, and who leaves makes room."""
    lane = known()
    times = {who: lane.ask(who, 0, 0) for who in "abcd"}
    assert [times[who] for who in "abcd"] == sorted(at for at in times.values() if at is not None)
    lane.leave("a")
    assert lane.ask("b", 0, 0) == times["a"]
    assert lane.ask("e", 0, 0) == times["d"]


def test_a_promise_is_kept_though_others_do_not_come() -> None:
    """Those before it died: whoever is there when his time has come goes, and their places lapse."""
    lane = known()
    assert all(lane.ask(f"dead {number}", 0, 0) is not None for number in range(5))
    at = lane.ask("late", 0, 0)
    assert at is not None
    assert lane.ask("late", 0, at) is None
    assert lane.ask("next", 0, at + 100 * SECOND) is None


def test_who_was_refused_is_before_those_who_never_went() -> None:
    """Going again is going in the same place: the line behind does not pass."""
    lane = known(remaining=5, reset=0.75)
    assert lane.ask("early", 0, 0) is None
    waiting = [lane.ask(str(number), 0, 0) for number in range(10)]
    last = lane.ask("last", 0, 0)
    lane.see(RateSeen(requests=Window(20, 0, 1.0), busy=True), 1000)
    again = lane.ask("early", 0, 2000)
    assert None not in waiting
    assert again is not None
    assert last is not None
    assert again < last


def test_time_that_nobody_used_is_not_made_up_for() -> None:
    """After a stall of three seconds no more go at once than a twentieth of the limit."""
    lane = known(limit=100, remaining=100, reset=1.0)
    lane.see(RateSeen(requests=Window(100, 0, 1.0)), 0)
    at_once = sum(lane.ask(str(number), 0, 3 * SECOND) is None for number in range(50))
    assert at_once == 5


def test_what_a_busy_process_let_go_counts_when_it_is_sent() -> None:
    """Who is woken late says so: what went before may arrive only now, and what follows waits as long as that takes."""
    lane = known(limit=40, remaining=20, reset=2.0)
    assert [lane.ask(who, 0, 3 * SECOND) for who in "ab"] == [None, None]
    on_time = lane.ask("c", 0, 3 * SECOND)
    lane.stall(20_000, 3 * SECOND)
    assert lane.ask("c", 0, 3 * SECOND) == on_time
    lane.stall(300_000, 3 * SECOND + 300_000)
    late = lane.ask("d", 0, 3 * SECOND + 300_000)
    assert late is not None
    assert late > 3 * SECOND + 350_000


def test_what_a_provider_asks_for_closes_the_lane_but_not_for_ever() -> None:
    """Retry-After holds for everybody who shares the lane, up to a minute."""
    lane = Lane()
    lane.see(RateSeen(busy=True, retry_after=7.0), 0)
    at = lane.ask("a", 0, 0)
    assert at is not None
    assert 7 * SECOND <= at < 9 * SECOND
    lane.see(RateSeen(busy=True, retry_after=86_400.0), 0)
    at = lane.ask("a", 0, 0)
    assert at is not None
    assert 60 * SECOND <= at < 62 * SECOND


def test_tokens_are_waited_for_as_requests_are() -> None:
    """A request waits until as many tokens are there as it may take; one larger than all, until all are."""
    lane = Lane()
    lane.see(RateSeen(tokens=Window(6000, 0, 60.0)), 0)
    assert lane.ask("a", 1000, 0) == 10 * SECOND
    assert lane.ask("large", 60_000, 0) == 60 * SECOND
    assert lane.ask("a", 1000, 10 * SECOND) is None
    assert lane.ask("b", 1000, 10 * SECOND) == 20 * SECOND


def test_another_limit_is_learnt_anew() -> None:
    """Whoever buys a larger one is not held to the old."""
    lane = known(limit=2, remaining=0, reset=60.0)
    assert (lane.ask("a", 0, 0) or 0) >= 30 * SECOND
    lane.see(RateSeen(requests=Window(6000, 5000, 10.0)), SECOND)
    assert lane.ask("a", 0, SECOND) is None


def clock_of(times: list[int]) -> Callable[[], int]:
    """Return a clock that shows the last of these."""
    return lambda: times[-1]


def test_lanes_do_not_know_each_other() -> None:
    """What one provider says holds for its lane alone."""
    pace, times = Pace(), [0]
    assert pace.before("a", "one", clock=clock_of(times)) is None
    assert pace.before("b", "one", clock=clock_of(times)) is None
    soon = 60.0
    pace.after("a", RateSeen(requests=Window(60, 0, soon), busy=True, retry_after=soon))
    at = pace.before("a", "two", clock=clock_of(times))
    assert at is not None
    assert 50 * SECOND < at <= 63 * SECOND
    assert pace.before("b", "two", clock=clock_of(times)) is None
    pace.leave("a", "two")
    times.append(120 * SECOND)
    assert pace.before("a", "two", clock=clock_of(times)) is None


def test_a_clock_that_is_far_behind_begins_anew() -> None:
    """Times of another store's clock mean nothing: nobody waits years for them."""
    pace = Pace()
    assert pace.before("a", "one", clock=lambda: 10**15) is None
    pace.after("a", RateSeen(busy=True, retry_after=30.0))
    assert pace.before("a", "two", clock=lambda: 10**15) is not None
    assert pace.before("a", "two", clock=lambda: 10**14) is None


def test_the_pace_of_the_process_hears_what_providers_tell() -> None:
    """Whoever speaks to a provider need not know who paces."""
    assert PACE.before("heard", "one", clock=lambda: 0) is None
    PACE.after("heard", RateSeen(busy=True, retry_after=5.0))
    assert (PACE.before("heard", "two", clock=lambda: 0) or 0) >= 5 * SECOND
