"""The campaign of faulty providers: an agent's answer is whole, whatever was done to its streams."""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import holdfast as hf
from holdfast import events
from holdfast.agent.model import Model
from holdfast.core import entry as e
from holdfast.core.message import Message, ToolResult
from holdfast.core.transcript import transcript
from holdfast.models import Anthropic, OpenAI
from tests.chaos.campaign import Result, Shared, Tick
from tests.models.speech import CALLING, FIFTY
from tests.rigs.provider import Answer, Fault, Provider, Turn
from tests.rigs.provider.turn import CUTS, Cut, Flaw

_AT_ONCE: Final = 32
_SECONDS: Final = 60.0
_IMPATIENT: Final = 0.3
_HARMLESS: Final[Sequence[Flaw]] = ("doubled", "split_utf8")
_FLAWS: Final[Sequence[Flaw]] = ("unterminated", *_HARMLESS)
_HALVES: Final[Sequence[Flaw]] = ("half_call", "half_call_fin")
_OVERTAKING: Final[Sequence[Cut]] = ("rst", "stall")
"""After these nobody knows how much of what was sent was read."""
_BUSY: Final[Sequence[Fault]] = (
    Fault(status=429, headers={"retry-after": "2"}),
    Fault(status=429, headers={"retry-after-ms": "1500"}),
    Fault(status=429, headers={"x-ratelimit-reset-requests": "6m0s"}),
    Fault(status=429, headers={"retry-after": "Wed, 21 Oct 2065 07:28:00 GMT"}),
    Fault(status=503),
    Fault(status=529),
    Fault(status=500, created=True),
)
_ANSWERS: Final = {"fifty": FIFTY, "calling": CALLING}
_numbers = count()


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Trial:
    """One run whose provider fails once."""

    provider: str
    answer: str
    fault: Fault

    def __str__(self) -> str:
        fault = self.fault
        what = f"{fault.cut}@{fault.after}" if fault.cut else fault.flaw or f"{fault.status}{dict(fault.headers)}"
        return f"{self.provider}, {self.answer}, {what}"

    @property
    def fails(self) -> bool:
        """Whether its first attempt must."""
        return self.fault.flaw not in _HARMLESS

    @property
    def known_usage(self) -> bool:
        """Whether the provider told what the failed attempt took before it failed, and it was surely read."""
        if self.fault.status != 200 or self.fault.cut in _OVERTAKING:
            return False
        # The one counts the question at the beginning, the other everything at the end.
        tokens = len(_ANSWERS[self.answer].tokens)
        whole = self.fault.flaw in ("unterminated", "half_call") or self.fault.after >= tokens
        return self.provider == "anthropic" or (whole and not (self.answer == "calling" and self.fault.cut))


def trials() -> Iterator[Trial]:
    """Yield every fault at every token, of each provider."""
    for provider in ("openai", "anthropic"):
        for cut in CUTS:
            for after in range(len(FIFTY.tokens) + 1):
                yield Trial(provider, "fifty", Fault(cut=cut, after=after))
            for after in range(len(CALLING.tokens) + 1):
                yield Trial(provider, "calling", Fault(cut=cut, after=after))
        for flaw in _FLAWS:
            yield Trial(provider, "fifty", Fault(flaw=flaw))
        for flaw in (*_FLAWS, *_HALVES):
            yield Trial(provider, "calling", Fault(flaw=flaw))
        for fault in _BUSY:
            yield Trial(provider, "fifty", fault)


TRIALS: Final = tuple(trials())


@dataclass
class Watcher:
    """What somebody sees who follows a run: messages, and below them the preview of the one to come."""

    messages: list[Message] = field(default_factory=list)
    entries: list[e.Entry] = field(default_factory=list)
    previews: dict[tuple[str, int], str] = field(default_factory=dict)
    """Every preview that was shown, by step and attempt."""
    shown: dict[str, str] = field(default_factory=dict)
    """Those that are shown now."""

    def see(self, event: hf.Event) -> None:
        """Take one event in."""
        if isinstance(event, events.PreviewReset):
            self.shown.clear()
        elif isinstance(event, events.Chunk):
            if event.value["kind"] == "text":
                place = (event.step, event.attempt)
                self.previews[place] = self.previews.get(place, "") + event.value["text"]
                self.shown[event.step] = self.previews[place]
        else:
            self.entries.append(event)
            if (step := getattr(event, "step", None)) is not None:
                self.shown.pop(step, None)
            self.messages = transcript(self.entries)


@dataclass
class Stage:
    """A provider, and runs that ask it."""

    provider: Provider
    ran: dict[str, list[str]] = field(default_factory=dict)
    """Which tools ran with what, by run."""

    async def play(self, runtime: hf.Runtime, trial: Trial) -> None:
        """Play one trial.

        Raises:
            Broken: a promise was broken.
        """
        name = f"{trial.provider}-{next(_numbers)}"
        answer = _ANSWERS[trial.answer]
        rest = [FIFTY] if answer is CALLING else []
        first = [Turn(answer, trial.fault)] if trial.fails else []
        self.provider.says(name, *first, answer if trial.fails else Turn(answer, trial.fault), *rest)
        agent = hf.Agent(
            name, model=self._model(trial, name), tools=self._tools(name), retry=hf.Retry(attempts=3, first=0.01)
        )
        run = await runtime.start(agent, "Hello?")
        watcher = Watcher()
        async with asyncio.timeout(_SECONDS):
            async for event in run.events():
                watcher.see(event)
            result = await run.result()
        again = Watcher()
        async for event in run.events(follow=False):
            again.see(event)
        self._judge(trial, name, answer, result, watcher, again)

    def _model(self, trial: Trial, name: str) -> Model:
        stall = _IMPATIENT if trial.fault.cut == "stall" else _SECONDS
        if trial.provider == "openai":
            return OpenAI(name, key=name, base_url=self.provider.openai_url, stall_seconds=stall)
        return Anthropic(name, key=name, base_url=self.provider.url, stall_seconds=stall)

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

    def _judge(self, trial: Trial, name: str, answer: Answer, result: object, watcher: Watcher, again: Watcher) -> None:
        def check(true: bool, what: str) -> None:
            if not true:
                raise Broken(f"{trial}: {what}")

        check(result == FIFTY.text, f"the result is {result!r}")
        check(watcher.messages == again.messages, "a watcher shows other messages than the journal")
        check(not watcher.shown, f"a preview is left: {watcher.shown}")
        said = [(message.text, message.calls) for message in again.messages if message.role == "assistant"]
        wanted = [one.text for one in ([CALLING, FIFTY] if answer is CALLING else [FIFTY])]
        check([text for text, _ in said] == wanted, f"the journal says {said!r}")
        arguments = [call.arguments for _, calls in said for call in calls]
        check(arguments == [call.arguments for call in answer.calls], f"the calls are {arguments!r}")
        ran = sorted(self.ran[name])
        check(ran == (["look the é sea", "wait"] if answer is CALLING else []), f"the tools that ran: {ran!r}")
        told = [part.error for message in again.messages for part in message.parts if isinstance(part, ToolResult)]
        check(told == [False] * len(answer.calls), "a call has no result")
        for (step, attempt), text in watcher.previews.items():
            whole = FIFTY.text if step.endswith("#2") or answer is FIFTY else CALLING.text
            check(whole.startswith(text), f"attempt {attempt} of {step} showed {text!r}")
        self._judge_cost(trial, name, again, check)

    def _judge_cost(self, trial: Trial, name: str, seen: Watcher, check: Any) -> None:
        """See that every attempt which the provider would charge for is in the journal, with what is known of it."""
        failed = [entry for entry in seen.entries if isinstance(entry, e.StepFailed)]
        # A machine that is too busy to read looks like a provider that is silent.
        most = 2 if trial.fault.cut == "stall" else 1
        check(bool(failed) == trial.fails and len(failed) <= most, f"the attempts that failed: {failed!r}")
        made = [entry for entry in seen.entries if isinstance(entry, e.MessageAdded) and entry.role == "assistant"]
        check(len(self.provider.heard[name]) == len(failed) + len(made), "attempts are missing in the journal")
        check(all((entry.usage or {}).get("input") == 20 for entry in made), "a message without its usage")
        if failed and trial.known_usage:
            check((failed[0].usage or {}).get("input") == 20, f"the lost attempt's usage is {failed[0].usage!r}")
        if failed and trial.fault.status in (429, 503, 529):
            check(failed[0].usage is None and failed[0].error.code == "model_busy", f"{failed[0]!r}")
        elif failed:
            check(failed[0].error.code == "model_cut", f"{failed[0]!r}")


async def play(chosen: Sequence[Trial], store: str) -> list[str]:
    """Play trials, many at once, on one store; return what was broken."""
    failures: list[str] = []
    with Provider() as provider:
        stage = Stage(provider)
        async with hf.testing.open(store=store) as runtime:
            for first in range(0, len(chosen), _AT_ONCE):
                some = chosen[first : first + _AT_ONCE]
                ended = await asyncio.gather(*(stage.play(runtime, one) for one in some), return_exceptions=True)
                failures += [f"{one}: {error!r}" for one, error in zip(some, ended, strict=True) if error is not None]
    return failures


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
                part = some[first : first + 4 * _AT_ONCE]
                _played(part, store, shared)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _played(part: Sequence[Trial], store: str, shared: Shared) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{Path(folder) / 'faults.db'}" if store == "sqlite" else "memory://"
        failures = asyncio.run(play(part, address))
    shared.done(len(part), None, **Counter({f"on_{store}": len(part)}), **_kinds(part))
    for failure in failures:
        shared.done(0, failure, broken=1)


def _kinds(part: Sequence[Trial]) -> Counter[str]:
    return Counter(one.fault.cut or one.fault.flaw or f"status_{one.fault.status}" for one in part)
