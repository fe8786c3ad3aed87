"""A provider with a rate limit: a bucket of requests that fills evenly, told in its headers, and refusals beyond it."""

import asyncio
import json
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final, Self

from tests.rigs.provider.chat import Chat
from tests.rigs.provider.server import Heard, Provider
from tests.rigs.provider.streaming import plain
from tests.rigs.provider.turn import Answer

_CHAT: Final = Chat()


class Metered(Provider):
    """Allows `rate` requests a second, as many at once; every answer says what is left, as OpenAI's do."""

    def __init__(self, rate: int, *, tells: bool = True) -> None:
        super().__init__()
        self._rate, self._tells = rate, tells
        self._level, self._at = float(rate), 0.0
        self.arrived: list[float] = []
        """When each request came."""
        self.refused: list[int] = []
        """Which of them were refused, by their place among all."""

    @property
    def accepted(self) -> int:
        """How many were answered."""
        return len(self.arrived) - len(self.refused)

    async def _reply(self, heard: Heard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        now = time.monotonic()
        self._level = min(float(self._rate), self._level + (now - self._at) * self._rate)
        self._at = now
        self.arrived.append(now)
        fine = self._level >= 1
        if fine:
            self._level -= 1
        else:
            self.refused.append(len(self.arrived) - 1)
        headers = self._headers() if self._tells else {}
        if not fine:
            return await plain(writer, 429, {**headers, "retry-after": "1"}, json.dumps(_CHAT.error(429)).encode())
        answer = Answer(tokens=("fine",))
        return await plain(writer, 200, headers, json.dumps(_CHAT.whole(answer, str(heard.json["model"]))).encode())

    def _headers(self) -> dict[str, str]:
        reset_milliseconds = (self._rate - self._level) / self._rate * 1000
        return {
            "x-ratelimit-limit-requests": str(self._rate),
            "x-ratelimit-remaining-requests": str(int(self._level)),
            "x-ratelimit-reset-requests": f"{reset_milliseconds:.0f}ms",
        }


class Elsewhere:
    """The same in a process of its own, so that what it sees does not depend on how busy its clients are."""

    def __init__(self, rate: int) -> None:
        self._rate = rate

    def __enter__(self) -> Self:
        spawning = get_context("spawn")
        self._line, theirs = spawning.Pipe()
        self._process = spawning.Process(target=_serve, args=(self._rate, theirs), daemon=True)
        self._process.start()
        self.openai_url: str = self._line.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.send("end")
        self._process.join(10)

    @property
    def accepted(self) -> int:
        """How many were answered."""
        return int(self._asked("accepted"))

    @property
    def arrived(self) -> list[float]:
        """When each request came."""
        return list(self._asked("arrived"))

    @property
    def refused(self) -> list[int]:
        """Which of them were refused, by their place among all."""
        return list(self._asked("refused"))

    def _asked(self, what: str) -> Any:
        self._line.send(what)
        return self._line.recv()


def _serve(rate: int, line: "Connection[Any, Any]") -> None:
    with Metered(rate) as provider:
        line.send(provider.openai_url)
        while (what := line.recv()) != "end":
            line.send(getattr(provider, what))


def most_in_a_second(times: Sequence[float], *, after: float) -> int:
    """Return the most that came within any one second that begins so long after the first came, or later."""
    counted = [at for at in times if at >= times[0] + after] if times else []
    most = begin = 0
    for end, at in enumerate(counted):
        while counted[begin] <= at - 1:
            begin += 1
        most = max(most, end - begin + 1)
    return most
