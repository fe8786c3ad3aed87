"""When the next request of a lane may go: what its provider said of its limits, turned into a time."""

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

from msgspec import Struct

_SECOND: Final = 1_000_000
_BURST: Final = 0.05
"""Which part of a provider's limit may go at once; the rest is spread evenly over its time."""
_MARGIN: Final = 1.05
"""By how much requests are spread wider than the provider says: they do not arrive as evenly as they are sent."""
_HELD: Final = 10 * _SECOND
"""How long a request that nobody answered is believed not to be counted by the provider yet."""
_LAPSE: Final = 60 * _SECOND
"""How long somebody who does not come back keeps a place in the line."""
_CLOSED: Final = 60 * _SECOND
"""A lane is closed no longer than this for one refusal, whatever the provider asked for."""
_REMEMBERED: Final = 4096
_LATE: Final = 50_000
"""Who is woken later than usual by this is in a process that has stood still."""
_PIPELINE: Final = 150_000
"""How long a request may take from being let go to the wire in such a process."""
_CUT: Final = 0.7
_CALM: Final = 2 * _SECOND
_GROWTH: Final = 0.1
_LEAST: Final = 0.05
"""Which part of the provider's rate refusals leave: others who share the key have at most the rest."""
_LEAST_RATE: Final = 0.01
_LOOK: Final = 5 * _SECOND
_MOST_RATE: Final = 1000.0


class Window(Struct, frozen=True):
    """What is left of one limit: `remaining` of `limit`, and all of it again in `reset` seconds; None is unknown."""

    limit: int | None = None
    remaining: int | None = None
    reset: float | None = None


class RateSeen(Struct, frozen=True):
    """What one answer of a provider told of its limits, as soon as its headers have come.

    `busy` is a refusal for the rate or for load (429, 503, 529); `retry_after` is in seconds from now. An answer that
    tells nothing is `RateSeen()`: it says that the request was counted.
    """

    requests: Window = Window()
    tokens: Window = Window()
    retry_after: float | None = None
    busy: bool = False


class Meter:
    """One limit of a provider, followed between its answers; times are in µs."""

    def __init__(self) -> None:
        self.limit = 0
        self._longest = 0.0
        self._one_at = 0.0
        """When the provider's bucket held, or will hold, exactly one."""

    @property
    def interval(self) -> float | None:
        """In which time the provider allows one more; None while nobody knows.

        All of it comes back in `reset`, so the longest reset that was seen bounds the rate, and is exact once the
        bucket was empty, or its window had just begun.
        """
        return self._longest / self.limit if self.limit and self._longest else None

    def see(self, window: Window, unanswered: int, now: int) -> None:
        """Learn what a provider said, its times in seconds; `unanswered` were sent, and may not be counted yet."""
        if not window.limit:
            return
        if window.limit != self.limit:
            self.limit, self._longest, self._one_at = window.limit, 0.0, now - window.limit * 1e9
        if window.reset is not None and window.reset > 0 and window.remaining != window.limit:
            self._longest = max(self._longest, window.reset * _SECOND)
        if self.interval is not None and window.remaining is not None:
            self._one_at = now + (1 - window.remaining + unanswered) * self.interval

    def take(self, count: int, now: int) -> None:
        """Follow what was sent."""
        if self.interval is not None:
            full_at = now - (self.limit - 1) * self.interval
            self._one_at = max(self._one_at, full_at) + count * self.interval

    def ready_at(self, count: int) -> float:
        """Return when so many are there; more than ever fit are there when all of it is."""
        if self.interval is None:
            return -math.inf
        return self._one_at + (min(count, self.limit) - 1) * self.interval


class Lane:
    """All that was learnt of one lane, and the line of those who wait for it.

    Who asks is told to go, or when to ask again. Time is the caller's: µs that do not turn back.
    """

    def __init__(self) -> None:
        self.requests, self.tokens = Meter(), Meter()
        self._rate: float | None = None
        """What refusals taught, in requests per second; None while they taught nothing."""
        self._guessed = False
        """True when the last lesson was the first, and counted what was not refused."""
        self._rated_at = self._cut_at = self._learnt_at = -(10**18)
        self._stalled_at = -(10**18)
        self._usual = 0
        """By how much whoever slept was woken late so far."""
        self._full_at: float = -(10**18)
        """When what was sent will be paid for by the rate: the next one may go a burst before."""
        self._closed_until = -(10**18)
        self._sent: deque[tuple[int, int]] = deque()
        self._lapsed = False
        """True when some of what was sent was forgotten since the last answer, which may be to one of those."""
        self._asked_at: deque[int] = deque()
        self._refused_at: deque[int] = deque()
        """When requests went and were refused, within the last second."""
        self._line: list[tuple[int, str]] = []
        self._places: dict[str, tuple[int, float]] = {}
        self._numbers = 0
        self._went: dict[str, int] = {}
        """The places of those who went last: who was refused and comes again is before all who never went."""

    # Asking

    def ask(self, who: str, tokens: int, now: int) -> int | None:
        """Return None for who may send now, and has sent; otherwise when to ask again, in the order of asking."""
        self._forget_lapsed(now)
        number, at = self._places.get(who) or (self._number(who), math.inf)
        rank = bisect_left(self._line, (number, who))
        # A promise that has come due is kept as soon as anybody may go, whoever else has not come back yet.
        if self._ready_at(0 if at <= now else rank, tokens, now) <= now:
            self.leave(who)
            self._send(tokens, now)
            self._went[who] = number
            return None
        if who not in self._places:
            insort(self._line, (number, who))
        promised_at = math.ceil(self._ready_at(rank, tokens, now))
        self._places[who] = (number, promised_at)
        if self._taught(now) is None:
            return promised_at
        # A rate that refusals taught grows again, so that whoever waits for long by it looks now and then.
        begin_at = max(now, self._closed_until)
        wait = promised_at - begin_at
        return begin_at + max(wait // 3, min(wait, _LOOK))

    def _number(self, who: str) -> int:
        """Return the place of somebody new, or of somebody who went before."""
        while len(self._went) > _REMEMBERED:
            del self._went[next(iter(self._went))]
        number = self._went.pop(who, None)
        if number is None:
            self._numbers += 1
            number = self._numbers
        return number

    def stall(self, late: int, now: int) -> None:
        """Hear that the process was late by so much: what was let go meanwhile may be on its way only now.

        It counts as sent at this moment, so that what follows does not arrive together with it. A process that is
        always as late sends as evenly as any other.
        """
        more = late - 2 * self._usual
        self._usual += (late - self._usual) // 5
        interval = self._interval(now)
        if interval is None or more < _LATE or now - self._stalled_at < more + _PIPELINE:
            return
        self._stalled_at = now
        unsent = sum(at >= now - more - _PIPELINE for at in self._asked_at)
        self._full_at = max(self._full_at, now + unsent * interval)

    def leave(self, who: str) -> None:
        """Give up a place in the line."""
        place = self._places.pop(who, None)
        if place is not None:
            del self._line[bisect_left(self._line, (place[0], who))]

    def _forget_lapsed(self, now: int) -> None:
        while self._line and self._places[self._line[0][1]][1] < now - _LAPSE:
            self.leave(self._line[0][1])

    def _ready_at(self, rank: int, tokens: int, now: int) -> float:
        at: float = max(self._closed_until, self.tokens.ready_at(tokens))
        interval = self._interval(now)
        if interval is None:
            return at
        burst = max(1, int(self.requests.limit * _BURST))
        even = max(self._full_at, self._closed_until, now) + (rank - burst + 1) * interval
        return max(at, even, self.requests.ready_at(1 + rank))

    def _send(self, tokens: int, now: int) -> None:
        interval = self._interval(now)
        if interval is not None:
            self._full_at = max(self._full_at, now) + interval
        self.requests.take(1, now)
        self.tokens.take(tokens, now)
        self._sent.append((now, tokens))
        self._forget_unanswered(now)
        self._asked_at.append(now)
        _drop(self._asked_at, now)

    def _forget_unanswered(self, now: int) -> None:
        while self._sent and self._sent[0][0] < now - _HELD:
            self._sent.popleft()
            self._lapsed = True

    def _interval(self, now: int) -> float | None:
        """Return the time between two requests: the provider's, or longer where refusals taught so."""
        rate, told = self._taught(now), (self.requests.interval or 0.0) * _MARGIN
        return max(_SECOND / rate, told) if rate is not None else told or None

    def _taught(self, now: int) -> float | None:
        """Return the rate that refusals taught, which grows again while none comes."""
        if self._rate is None:
            return None
        calm_seconds = max(0, now - self._rated_at - _CALM) / _SECOND
        rate = self._rate * (1 + _GROWTH) ** min(calm_seconds, 1000.0)
        return rate if rate < _MOST_RATE else None

    # Learning

    def see(self, seen: RateSeen, now: int) -> None:
        """Learn from one answer, whose times are in seconds from now."""
        if self._sent and not self._lapsed:
            self._sent.popleft()
        self._forget_unanswered(now)
        self._lapsed = False
        known = self.requests.interval is not None
        self.requests.see(seen.requests, len(self._sent), now)
        self.tokens.see(seen.tokens, sum(tokens for _, tokens in self._sent), now)
        if self.requests.interval is not None and not known:
            self._learnt_at = now
        if seen.busy:
            self._refused_at.append(now)
            _drop(self._refused_at, now)
            _drop(self._asked_at, now)
            self._refused(seen, now)

    def _refused(self, seen: RateSeen, now: int) -> None:
        if seen.retry_after is not None:
            self._closed_until = max(self._closed_until, now + min(round(seen.retry_after * _SECOND), _CLOSED))
        if now - self._learnt_at < _SECOND:
            return  # it went before the rate was known
        told, rate = self.requests.interval, self._taught(now)
        accepted = float(max(1, len(self._asked_at) - len(self._refused_at)))
        if now - self._cut_at < _SECOND:
            # All refusals of one burst are one lesson, which is the clearer the more of them have come.
            if self._guessed and self._rate is not None:
                self._rate = min(self._rate, accepted)
            return
        self._cut_at = self._rated_at = now
        self._guessed = rate is None and told is None
        if self._guessed:
            self._rate = accepted
        else:
            known = _SECOND / told if told is not None else 0.0
            self._rate = max((rate if rate is not None else known) * _CUT, known * _LEAST, _LEAST_RATE)


def _drop(times: deque[int], now: int) -> None:
    """Forget what is more than a second ago."""
    while times and times[0] < now - _SECOND:
        times.popleft()
