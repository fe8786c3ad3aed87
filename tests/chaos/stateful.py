"""The campaign of providers that keep what they generate: each generation made and charged once, however it is cut."""

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

import holdfast as hf
from holdfast.core import entry as e
from holdfast.core.message import ToolResult
from holdfast.harness import GeminiInteractions, Harness, OpenAIResponses
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.faults import Broken, Watcher
from tests.chaos.kept import faults_of, owed
from tests.models.speech import CALLING, FIFTY
from tests.rigs.provider import Answer, Fault, Provider, Turn
from tests.rigs.provider.generation import Generation, Stateful
from tests.rigs.provider.interactions import Interactions
from tests.rigs.provider.responses import Responses
from tests.rigs.provider.server import Heard
from tests.rigs.provider.turn import CUTS, Cut, Flaw

Meanwhile = Literal["ended", "goes on", "is cut again"]
"""What a generation does while nobody listens: it ends, it waits to be heard, or that is cut too."""
_MEANWHILE: Final[Sequence[Meanwhile]] = ("ended", "goes on", "is cut again")
_AT_ONCE: Final = 32
_SECONDS: Final = 60.0
_IMPATIENT: Final = 0.3
_PATIENT: Final = 1.0
_TOKENS: Final = 1_000_000
QUESTION: Final = "Hello?"
_HARMLESS: Final[Sequence[Flaw]] = ("doubled", "split_utf8")
_FLAWS: Final[Sequence[Flaw]] = ("unterminated", *_HARMLESS, "half_call", "half_call_fin")
_OVERTAKING: Final[Sequence[Cut]] = ("rst", "stall")
"""After these nobody knows how much of what was sent was read."""
_BUSY: Final[Sequence[Fault]] = (
    Fault(status=429, headers={"retry-after": "2"}),
    Fault(status=429, headers={"retry-after-ms": "1500"}),
    Fault(status=429, headers={"x-ratelimit-reset-requests": "6m0s"}),
    Fault(status=429, headers={"retry-after": "Wed, 21 Oct 2065 07:28:00 GMT"}),
)
_DOUBTFUL: Final[Sequence[Fault]] = (
    Fault(status=503),
    Fault(status=529),
    Fault(status=500, created=True),
    Fault(status=503, created=True),
)
_ANSWERS: Final = {"fifty": FIFTY, "calling": CALLING}
_DIALECTS: Final[Mapping[str, Stateful]] = {"openai": Responses(), "gemini": Interactions()}
_numbers = count()


@dataclass(frozen=True)
class Trial:
    """One turn whose provider fails once, or twice."""

    provider: str
    answer: str
    fault: Fault
    meanwhile: Meanwhile = "ended"

    def __str__(self) -> str:
        fault = self.fault
        cut = f"{fault.cut}@{fault.after_events}" if fault.cut else ""
        made = " after its creation" if fault.created else ""
        what = cut or fault.flaw or f"{fault.status}{dict(fault.headers)}{made}"
        return f"{self.provider}, {self.answer}, {what}, {self.meanwhile}"

    @property
    def doubts(self) -> Sequence[int]:
        """How many creations may be doubted: those of which no id was heard."""
        if self.fault.status != 200:
            return [int(self.fault.status != 429)]
        if self.fault.cut is None or self.fault.flaw is not None:
            return [0]
        if self.fault.after_events == 0:
            # A machine that is too busy to listen looks like a provider that is silent once more.
            return [1, 2, 3] if self.fault.cut == "stall" else [1]
        return [0, 1] if self.fault.cut in _OVERTAKING else [0]

    @property
    def turn(self) -> Turn:
        """What the provider does at first."""
        answer, fault = _ANSWERS[self.answer], self.fault
        if self.meanwhile == "ended" or fault.cut is None or fault.after_events is None:
            return Turn(answer, fault)
        again = Fault(cut=fault.cut, after_events=1)
        later = [Fault(), again] if self.meanwhile == "is cut again" else []
        return Turn(answer, fault, later=later, holds_after=fault.after_events + 1)


def events_of(provider: str, answer: Answer) -> int:
    """Return how many events tell of an answer, up to the one that ends it."""
    told = _DIALECTS[provider].events(Generation("1", "m", {}, answer, None), half_call=False)
    return len(told) - sum(frame.carries == "end" for frame in told) + 1


def trials() -> Iterator[Trial]:
    """Yield every fault at every event, of each provider."""
    for provider in _DIALECTS:
        for name, answer in _ANSWERS.items():
            for after in range(events_of(provider, answer)):
                for cut in CUTS:
                    for meanwhile in _MEANWHILE if after else _MEANWHILE[:1]:
                        yield Trial(provider, name, Fault(cut=cut, after_events=after), meanwhile)
            for flaw in _FLAWS:
                if answer.calls or not flaw.startswith("half"):
                    yield Trial(provider, name, Fault(flaw=flaw))
            for fault in (*_BUSY, *_DOUBTFUL):
                yield Trial(provider, name, fault)


TRIALS: Final = tuple(trials())


class Kind(Provider):
    """Says to a question what it is told to, and fails at the first one; to all that follows, the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Turn] = {}
        self.answers: dict[str, Answer] = {}

    def next_turn(self, heard: Heard, model: str) -> Turn:
        if QUESTION not in json.dumps(heard.json["input"]):
            return Turn(FIFTY)
        return self.first.pop(model, None) or Turn(self.answers[model])


@dataclass
class Stage:
    """A provider, and turns that it takes."""

    provider: Kind
    ran: dict[str, list[str]] = field(default_factory=dict)
    """Which tools ran with what, by model."""

    async def play(self, runtime: hf.Runtime, trial: Trial) -> Counter[str]:
        """Play one trial: the turn that fails, and another one behind it; return what happened.

        Raises:
            Broken: a promise was broken.
        """
        name = f"{trial.provider}-{next(_numbers)}"
        answer = _ANSWERS[trial.answer]
        self.provider.first[name], self.provider.answers[name] = trial.turn, answer
        agent = hf.Agent(
            name, harness=self._harness(trial, name), tools=self._tools(name),
            retry=hf.Retry(attempts=4, first=0.01),
        )  # fmt: skip
        seen: list[Watcher] = []
        for message in (QUESTION, "And then?"):
            async with asyncio.timeout(_SECONDS):
                run = await runtime.start(agent, message, conversation=name, budget=hf.Budget(tokens=_TOKENS))
                watcher, journal = Watcher(), Watcher()
                async for event in run.events():
                    watcher.see(event)
                result = await run.result()
            async for event in run.events(follow=False):
                journal.see(event)
            budget = (await run.info()).budget
            self._judge_turn(trial, message, result, watcher, journal, budget)
            seen.append(journal)
        return self._judge(trial, name, answer, seen)

    def _harness(self, trial: Trial, name: str) -> Harness:
        stall = _IMPATIENT if trial.fault.cut == "stall" else _SECONDS
        # Only where nothing comes at all is a first event not waited for.
        first = _PATIENT if trial.fault.cut == "stall" and trial.fault.after_events == 0 else _SECONDS
        options: Any = {"key": name, "first_seconds": first, "stall_seconds": stall, "rest_seconds": 0.01}
        if trial.provider == "openai":
            return OpenAIResponses(name, base_url=self.provider.openai_url, **options)
        return GeminiInteractions(name, base_url=self.provider.url, **options)

    def _tools(self, name: str) -> list[Any]:
        ran = self.ran.setdefault(name, [])

        async def look(at: str) -> str:
            """Look."""
            ran.append(f"look {at}")
            return "the sea"

        async def wait() -> str:
            """Wait."""
            ran.append("wait")
            return "waited"

        return [look, wait]

    def _judge_turn(
        self, trial: Trial, message: str, result: object, watcher: Watcher, journal: Watcher, budget: Any
    ) -> None:
        _check(trial, result == FIFTY.text, f"the result is {result!r}")
        _check(trial, watcher.messages == journal.messages, "a watcher shows other messages than the journal")
        _check(trial, not watcher.shown, f"a preview is left: {watcher.shown}")
        calls = message == QUESTION and trial.answer == "calling"
        for (step, attempt), text in watcher.previews.items():
            whole = CALLING.text if calls and step.endswith("#1") else FIFTY.text
            _check(trial, whole.startswith(text), f"attempt {attempt} of {step} showed {text!r}")
        spent, wanted = budget["tokens"]["spent"], owed(journal.entries)
        _check(trial, spent == wanted, f"{spent} tokens were charged for {wanted}")

    def _judge(self, trial: Trial, name: str, answer: Answer, seen: Sequence[Watcher]) -> Counter[str]:
        said = [one for watcher in seen for one in watcher.messages if one.role == "assistant"]
        wanted = [CALLING, FIFTY, FIFTY] if answer is CALLING else [FIFTY, FIFTY]
        _check(trial, [one.text for one in said] == [one.text for one in wanted], f"the journal says {said!r}")
        ran = sorted(self.ran[name])
        _check(trial, ran == (["look the é sea", "wait"] if answer is CALLING else []), f"the tools that ran: {ran!r}")
        told = [part.error for one in seen for message in one.messages for part in message.parts
                if isinstance(part, ToolResult)]  # fmt: skip
        _check(trial, told == [False] * len(answer.calls), "a call has no result")
        entries = [entry for watcher in seen for entry in watcher.entries]
        doubts = sum(isinstance(entry, e.StepDoubted) for entry in entries)
        _check(trial, doubts in trial.doubts, f"{doubts} doubts are shown")
        made = self.provider.made(name)
        lost = doubts if trial.fault.status == 200 or trial.fault.created else 0
        wrong = faults_of([watcher.entries for watcher in seen], made, lost=lost)
        _check(trial, not wrong, "; ".join(wrong))
        busy = [entry for entry in entries if isinstance(entry, e.StepFailed)]
        _check(trial, len(busy) == (trial.fault.status == 429), f"the attempts that failed: {busy!r}")
        free = all((one.usage or {}).get("tokens") == 0 and one.error.code == "model_busy" for one in busy)
        _check(trial, free, f"an attempt that was refused is charged: {busy!r}")
        asked = self.provider.heard[name]
        behind = sum(bool(one.query.get("starting_after") or one.query.get("last_event_id")) for one in asked)
        return Counter(made=len(made), doubts=doubts, looks=sum(one.method == "GET" for one in asked), behind=behind)


def _check(trial: Trial, true: bool, what: str) -> None:
    if not true:
        raise Broken(f"{trial}: {what}")


async def play(chosen: Sequence[Trial], store: str) -> tuple[list[str], Counter[str]]:
    """Play trials, many at once, on one store; return what was broken, and what happened how often."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    waits = [one for one in chosen if one.fault.status == 429]
    with Kind() as provider:
        stage = Stage(provider)
        # Whoever is told to come back in minutes has a clock that moves; all others go on in the process they are in.
        async with hf.testing.open(store=store) as patient:
            await _play(stage, patient, waits, failures, counts)
        async with hf.open(store) as runtime:
            await _play(stage, runtime, [one for one in chosen if one not in waits], failures, counts)
    return failures, counts


async def _play(
    stage: Stage, runtime: hf.Runtime, chosen: Sequence[Trial], failures: list[str], counts: Counter[str]
) -> None:
    for first in range(0, len(chosen), _AT_ONCE):
        some = chosen[first : first + _AT_ONCE]
        ended = await asyncio.gather(*(stage.play(runtime, one) for one in some), return_exceptions=True)
        for one, outcome in zip(some, ended, strict=True):
            if isinstance(outcome, BaseException):
                failures.append(f"{one}: {outcome!r}")
            else:
                counts.update(outcome)


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Play `wanted` trials, half of them on each store; all of them before any comes again."""
    shared, started = Shared(tick), time.monotonic()
    chance = random.Random(seed)
    for store in ("memory", "sqlite"):
        left = wanted // 2
        while left > 0:
            some = chance.sample(TRIALS, min(left, len(TRIALS)))
            left -= len(some)
            for first in range(0, len(some), 4 * _AT_ONCE):
                _played(some[first : first + 4 * _AT_ONCE], store, shared)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _played(part: Sequence[Trial], store: str, shared: Shared) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{Path(folder) / 'kept.db'}" if store == "sqlite" else "memory://"
        failures, counts = asyncio.run(play(part, address))
    kinds = Counter(one.fault.cut or one.fault.flaw or f"status_{one.fault.status}" for one in part)
    shared.done(len(part), None, **Counter({f"on_{store}": len(part)}), **counts, **kinds)
    for failure in failures:
        shared.done(0, failure, broken=1)
