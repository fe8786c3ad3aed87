"""Interactions and Responses keep the contract of every harness, against a provider on a real socket."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from holdfast.harness import GeminiInteractions, Harness, OpenAIResponses
from holdfast.testing.harness import Creation, HarnessContract, Line
from tests.rigs.provider import Answer, Call, Fault, Provider, Turn
from tests.rigs.provider.frame import Frame
from tests.rigs.provider.generation import Generation
from tests.rigs.provider.server import Heard

_PATHS = {"openai": "/v1/responses", "gemini": "/v1/interactions"}
_names = (f"kit-{number}" for number in count())


class _Service(Provider):
    """A provider that asks its bench what to say."""

    def __init__(self, bench: "StatefulBench") -> None:
        super().__init__()
        self._bench = bench

    def next_turn(self, heard: Heard, model: str) -> Turn:
        return self._bench.turn(heard, model)


class StatefulBench:
    """A provider that says the n-th line in the n-th generation of a chain."""

    caps = True
    wrong_cursors: Sequence[Any] = ({"response": 7}, {"interaction": None}, {"session": "s1"})

    def __init__(self, kind: str) -> None:
        self._kind, self.service = kind, _Service(self)
        self._keeper = self.service.keepers[_PATHS[kind]]
        self._cuts: list[tuple[int, bool]] = []
        self.clear("nothing")

    def harness(self) -> Harness:
        """Return another one for the same provider."""
        options: Any = {"key": "sk-unseen", "rest_seconds": 0.01}
        if self._kind == "openai":
            return OpenAIResponses(self._model, base_url=self.service.openai_url, **options)
        return GeminiInteractions(self._model, base_url=self.service.url, **options)

    def clear(self, *lines: Line) -> None:
        """Begin with a model that nobody has asked yet."""
        self._model, self._answers = next(_names), [_answer(line) for line in lines]
        self._holds, self._short = False, False

    def created(self) -> Sequence[Creation]:
        """Return what the model has generated."""
        return [Creation(one.id, one.previous) for one in self.service.made(self._model)]

    def cancelled(self) -> Sequence[str]:
        """Return what was ended."""
        return [one.id for one in self.service.made(self._model) if one.cancelled]

    def cut(self, after: int, *, clean: bool) -> None:
        """Cut the next stream."""
        self._cuts.append((after, clean))

    def cap(self) -> None:
        """Let every generation use up its length."""
        self._short = True

    def hold(self) -> None:
        """Let every generation think until somebody listens again, which nobody does before `release`."""
        self._holds = True

    def release(self) -> None:
        """Let what comes from now on be generated at once."""
        self._holds = False

    def close(self) -> None:
        """It is closed by whoever opened it."""

    def turn(self, heard: Heard, model: str) -> Turn:
        """Return what a model says to a request."""
        depth, previous = 0, self._keeper.dialect.previous(heard.json)
        while previous is not None and (found := self._keeper.find(previous)) is not None:
            depth, previous = depth + 1, found.previous
        answer = self._answers[depth]
        if self._short:
            answer = Answer(tokens=answer.tokens, short=True)
        if not self._cuts:
            return Turn(answer, holds_after=3 if self._holds else None)
        after, clean = self._cuts.pop()
        frames = self._keeper.dialect.events(Generation("1", model, {}, answer, None), half_call=False)
        return Turn(answer, Fault(cut="end" if clean else "fin", after_events=_place(frames, after)))


def _place(frames: Sequence[Frame], after: int) -> int:
    """Return how many events bring the id and so many tokens."""
    places = [place for place, frame in enumerate(frames, 1) if frame.carries == "token"]
    return places[after - 1] if after else 1


def _answer(line: Line) -> Answer:
    if isinstance(line, str):
        words = line.split(" ")
        return Answer(tokens=[f"{word} " for word in words[:-1]] + words[-1:])
    return Answer(calls=[Call(call.id, call.name, call.arguments) for call in line])


class TestStatefulHarnesses(HarnessContract):
    """What is generated is found again by its id; a creation without one is a doubt."""

    @pytest.fixture(params=_PATHS)
    def bench(self, request: pytest.FixtureRequest) -> Iterator[StatefulBench]:
        """A provider in a thread of this process."""
        bench = StatefulBench(request.param)
        with bench.service:
            yield bench
