"""Outsiders: they send signals, answer, cancel and pause as a plan says, and note what they were told."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import holdfast as hf
from holdfast import events
from holdfast.client.run import Run
from holdfast.runtime import Runtime
from tests.simulation.acting import DONE
from tests.simulation.plan import Plan, Visit, plans_of

Line = Mapping[str, Any]


class Guest:
    """Looks after the runs of some programs, from the moment that they are started until all have ended."""

    def __init__(
        self, runtime: Runtime, note: Callable[..., None], ledger: Callable[[], Sequence[Line]], *, look_seconds: float,
        flight_seconds: float,
    ) -> None:  # fmt: skip
        self._runtime, self._note, self._ledger, self._look_seconds = runtime, note, ledger, look_seconds
        self._flight_seconds = flight_seconds
        self._plans: dict[str, Plan] = {}
        self._visits: set[asyncio.Task[None]] = set()
        self._begun: set[tuple[str, str]] = set()
        self._read = 0

    def expect(self, plan: Plan) -> None:
        """Know the runs of a program, which may begin from now on."""
        self._plans |= {each.name: each for each in plans_of(plan)}

    async def leave(self) -> None:
        """See every visit that was begun to its end; the runs have ended, so that none takes long."""
        while self._visits:
            await asyncio.wait(set(self._visits))

    async def attend(self) -> None:
        """Look at what the runs note, for as long as this is not cancelled."""
        while True:
            lines = self._ledger()
            for line in lines[self._read :]:
                self._heard(line)
            self._read = len(lines)
            await asyncio.sleep(self._look_seconds)

    async def resolve_doubts(self) -> None:
        """Be the person who knows what happened, for as long as this is not cancelled."""
        while True:
            for row in await self._runtime.runs(status="waiting", limit=1000):
                if row.reason.startswith("doubt"):
                    await self._resolve(await self._runtime.get(row.id))
            await asyncio.sleep(4 * self._look_seconds)

    async def _resolve(self, run: Run[Any]) -> None:
        lines = self._ledger()
        async for event in run.events(follow=False):
            if isinstance(event, events.StepDoubted):
                place = event.step.rpartition("=")[2]
                landed = self._runtime._store.now() > event.at + self._flight_seconds * 1e6
                happened = any(line["what"] == "did" and line["place"] == place for line in lines)
                if not happened and not landed:
                    continue  # nobody can say yet that it did not happen
                with suppress(hf.NotFound, hf.Conflict):
                    await run.resolve(event.step, place + DONE if happened else hf.NOT_DONE, by="guest")

    def _heard(self, line: Line) -> None:
        plan = self._plans.get(line.get("plan", ""))
        if plan is None:
            return
        if line["what"] == "began":
            self._begin(line["run"], plan, (visit for visit in plan.visits if visit.what != "answer"))
        elif line["what"] == "asks":
            answers = (visit for visit in plan.visits if visit.what == "answer" and visit.place == line["place"])
            self._begin(line["run"], plan, answers)

    def _begin(self, run: str, plan: Plan, visits: Iterator[Visit]) -> None:
        for visit in visits:
            which = (plan.name, f"{visit.what} {visit.place} {visit.number}")
            if which not in self._begun:
                self._begun.add(which)
                task = asyncio.get_running_loop().create_task(self._visit(run, plan, visit))
                self._visits.add(task)
                task.add_done_callback(self._visits.discard)

    async def _visit(self, run_id: str, plan: Plan, visit: Visit) -> None:
        await asyncio.sleep(visit.after)
        run = await self._runtime.get(run_id)
        for _ in range(2 if visit.twice else 1):
            told = True
            match visit.what:
                case "signal":
                    told = await run.signal(visit.place, str(visit.number), key=f"{visit.place}/{visit.number}")
                case "cancel":
                    told = await run.cancel("a guest said so", by="guest")
                case "pause":
                    told = await run.pause(by="guest")
                    await asyncio.sleep(visit.rest)
                    await run.resume(by="guest")
                case "answer":
                    told = await self._answer(run, visit)
            self._note("told", of=plan.name, verb=visit.what, place=visit.place, answer=told)

    async def _answer(self, run: Run[Any], visit: Visit) -> bool:
        """Answer a question as soon as it is there; False when it was too late, or nobody asks it any more."""
        while True:
            # Looked at before what is asked now: a question that is there by then, and not later, was answered.
            gone = await self._was_asked(run, visit) or (await run.info()).status.terminal
            asked = [one for one in await run.questions() if one.show["place"] == visit.place]
            if asked:
                try:
                    await self._runtime.answer(asked[0], visit.yes, args={"n": 2}, by="guest")
                except (hf.Conflict, hf.NotFound):
                    return False
                return True
            if gone:
                return False
            await asyncio.sleep(self._look_seconds)

    async def _was_asked(self, run: Run[Any], visit: Visit) -> bool:
        """Say whether the question is there no more."""
        text = f"Is it {visit.place}?"
        return any([
            isinstance(event, events.QuestionAsked) and event.text == text async for event in run.events(follow=False)
        ])  # fmt: skip
