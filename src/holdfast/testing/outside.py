"""Whoever a run waits for, in a test: sends each the signal it waits for, and answers what is asked."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.client.local import LocalClient
from holdfast.client.protocol import Question
from holdfast.core import entry as e
from holdfast.core.errors import Conflict, InvalidInput
from holdfast.core.ids import RunId
from holdfast.core.signal import Decision, Signal
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter
from holdfast.stream.feed import feed

Said = bool | tuple[bool, Mapping[str, Any]] | Decision
"""What is said to a question: yes or no, with changes to its `args` if it has any; or as a person's decision."""
Answers = bool | Callable[[Question], Said] | None
_ALL = 100_000


@dataclass
class Outside:
    """What is there for a run that waits: values by the name of a signal, and what to say to a question."""

    signals: Mapping[str, bytes] = field(default_factory=dict)
    answers: Answers = None
    _sent: set[tuple[str, str]] = field(default_factory=set)

    @property
    def is_nobody(self) -> bool:
        """Nobody sends anything."""
        return not self.signals and self.answers is None

    async def act(self, store: Store) -> bool:
        """Give the runs at rest what they wait for; False when there was nothing to give.

        What was sent before a crash is sent again after it, under the same key: it counts once.
        """
        client, acted = LocalClient(store), False
        for row in await store.list(RunFilter(status=Status.WAITING, limit=_ALL)):
            for wait in await _waits(store, row.run) if row.owner is None else ():
                acted = await self._send(client, row.run, wait) or acted
        return await self._answer(client) or acted

    async def _send(self, client: LocalClient, run: RunId, wait: e.Wait) -> bool:
        name = next((name for name in wait.name.split(", ") if name in self.signals), None)
        if wait.kind != "signal" or name is None or (run, wait.step) in self._sent:
            return False
        self._sent.add((run, wait.step))
        return await client.signal(run, name, msgspec.json.decode(self.signals[name]), key=f"for {wait.step}")

    async def _answer(self, client: LocalClient) -> bool:
        acted = False
        for question in await client.questions() if self.answers is not None else ():
            if (question.run, question.id) in self._sent:
                continue
            self._sent.add((question.run, question.id))
            said = _decision(question, self.answers(question) if callable(self.answers) else self.answers)
            try:
                await client.answer(
                    question.id, said.yes, shown=question.shown, args=said.args, by=said.by, note=said.note
                )
            except Conflict:
                continue  # answered before the crash
            acted = True
        return acted


def _decision(question: Question, said: Any) -> Decision:
    """Return what was said as a decision.

    Raises:
        InvalidInput: it is neither yes nor no.
    """
    match said:
        case bool():
            return Decision(yes=said)
        case (bool(yes), Mapping() as args):
            return Decision(yes=yes, args=dict(args))
        case Decision(yes=bool()):
            return said
    if inspect.iscoroutine(said):
        said.close()  # nobody will await it
    raise InvalidInput(
        f"to {question.text!r} the function in answers= said {said!r}: let it return True, False, an hf.Decision, or "
        "(True, {...}) with what is changed of the question's args"
    )


async def _waits(store: Store, run: RunId) -> list[e.Wait]:
    """Return what a run rests for."""
    waits: list[e.Wait] = []
    async for event in feed(store, run, follow=False):
        if isinstance(event, e.RunParked):
            waits = event.waits
    return waits


def outside(signals: Mapping[Any, Any] | None, answers: Answers) -> Outside:
    """Return who sends these signals, by name or by `hf.Signal`, and answers so.

    Raises:
        InvalidInput: a signal does not take that value, or is none; or the answers are neither yes nor no.
    """
    if answers is not None and not isinstance(answers, bool) and not callable(answers):
        raise InvalidInput(f"answers= is True, False or a function of the question, not {answers!r}")
    values: dict[str, bytes] = {}
    for signal, value in (signals or {}).items():
        if isinstance(signal, str):
            signal = Signal(signal)
        if not isinstance(signal, Signal):
            raise InvalidInput(f"signals= has values by name or by hf.Signal, not by {signal!r}")
        values[signal.name] = signal.codec.round_trip(value, f"signal {signal.name}")[0]
    return Outside(values, answers)
