"""What every harness must do, as checks of one bench: each raises AssertionError where it is not so."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.harness import Ask, CursorInvalid, Ended, Event, Harness, Known, Start, Told
from holdfast.agent.tool import tool
from holdfast.core import entry as e
from holdfast.core.errors import RunError
from holdfast.core.message import ASSISTANT, USER, Message, Text
from holdfast.core.retry import Retry
from holdfast.core.status import NOT_DONE, Status
from holdfast.core.transcript import transcript
from holdfast.engine.app import App
from holdfast.runtime import open
from holdfast.testing.crashes import every_crash
from holdfast.testing.harness.bench import Bench, Creation, Listening
from holdfast.testing.life import Ended as RunEnded
from holdfast.testing.scripted import call

LIMIT_SECONDS: Final = 30.0
_LINE: Final = "one two three"
_QUICK: Final = Retry(attempts=5, first=0.001, most=0.01)
_MESSAGES: Final = (Message(USER, (Text("hello"),)),)

Check = Callable[[Bench], Awaitable[None]]


# One exchange


async def it_reports_a_handle_and_then_its_end(bench: Bench) -> None:
    """The handle comes before the end, which is last, and both are plain data."""
    bench.clear(_LINE)
    events = await _exchange(bench.harness(), _ask("1"))
    kinds = [type(event) for event in events]
    assert kinds.count(Ended) == 1, f"an exchange ends once, not {kinds.count(Ended)} times"
    assert kinds[-1] is Ended, f"nothing follows the end, but {kinds[-1].__name__} did"
    assert Known in kinds[:-1], "what was created has a handle, told before its end"
    ended = _end(events)
    assert ended.how == "completed", f"it should have completed, and is {ended.how}: {ended.why}"
    assert ended.message is not None, "what completed has a message"
    assert ended.message.role == ASSISTANT
    assert ended.message.text == _LINE, f"the service said {_LINE!r}, and the harness {ended.message.text!r}"
    assert ended.cursor is not None, "what completed has a cursor"
    for what in (ended.cursor, _handle(events)):
        assert msgspec.json.decode(msgspec.json.encode(what)) == what, f"{what!r} is no plain data"
    ids = [event.id for event in events if event.id]
    assert len(ids) == len(set(ids)), f"events have ids of their own, not {ids}"


async def the_next_exchange_goes_on_behind_the_last(bench: Bench) -> None:
    """From a cursor, in another process, the chain goes on; it neither begins anew nor forks."""
    bench.clear(_LINE, "four")
    first = _end(await _exchange(bench.harness(), _ask("1")))
    second = _end(await _exchange(bench.harness(), _ask("2", cursor=first.cursor)))
    assert second.message is not None
    assert second.message.text == "four", f"the second line is 'four', and not {second.message.text!r}"
    one, two = bench.created()
    assert (one.parent, two.parent) == (None, one.id), f"the second goes on behind the first, not behind {two.parent}"


async def what_has_ended_is_found_again_as_it_was(bench: Bench) -> None:
    """Attached to in another process, the same message and cursor come again, and nothing is created."""
    bench.clear(_LINE)
    events = await _exchange(bench.harness(), _ask("1"))
    again = _end(await _attach(bench.harness(), _ask("1"), _handle(events), None))
    before = _end(events)
    assert (again.message, again.cursor, again.how) == (before.message, before.cursor, before.how), "it is another"
    assert len(bench.created()) == 1, "attaching creates nothing"


async def it_gives_strictly_what_follows_an_event(bench: Bench) -> None:
    """A session that was cut gets the rest: no event that it has seen comes again."""
    bench.clear(_LINE)
    harness = bench.harness()
    session = await harness.open(Start())
    try:
        events = await _listed(session.create(_ask("1")))
        ids = [event.id for event in events if event.id]
        for place, after in enumerate(ids[:-1], 1):
            rest = await _listed(session.attach(_ask("1"), _handle(events), after))
            twice = set(ids[:place]) & {event.id for event in rest}
            assert not twice, f"behind event {after} came {sorted(twice)} again"
            assert _end(rest).message == _end(events).message, f"behind event {after} the message is another"
    finally:
        await session.close()
    assert len(bench.created()) == 1, "attaching creates nothing"


async def it_takes_no_cursor_but_its_own(bench: Bench) -> None:
    """What it cannot read fails the start; it never begins anew instead."""
    bench.clear(_LINE)
    harness = bench.harness()
    for cursor in ("?", 17, [], {}, {"?": 1}, *bench.wrong_cursors):
        try:
            session = await harness.open(Start(cursor=cursor, version=harness.version))
        except CursorInvalid:
            continue
        await session.close()
        raise AssertionError(f"it took {cursor!r} for a cursor")
    assert bench.created() == [], "a start that fails has created nothing"


async def what_was_created_is_never_denied(bench: Bench) -> None:
    """Asked for what was created and whose handle was lost, it finds it or does not know; it is not denied."""
    bench.clear(_LINE)
    session = await bench.harness().open(Start())
    try:
        async with aclosing(session.create(_ask("1"))) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Known):
                    break
    finally:
        await session.close()
    session = await bench.harness().open(Start())
    try:
        found = await session.find(_ask("1"))
        assert found is not NOT_DONE, "it was created, and find() says that it provably was not"
        if found is not None:
            _end(await _listed(session.attach(_ask("1"), found, None)))
    finally:
        await session.close()
    assert len(bench.created()) == 1, "looking creates nothing"


async def one_key_is_one_creation(bench: Bench) -> None:
    """A harness that says it is keyed sends a creation again without making another one."""
    bench.clear(_LINE)
    harness = bench.harness()
    if harness.keyed:
        first, second = [await _exchange(bench.harness(), _ask("1")) for _ in range(2)]
        assert len(bench.created()) == 1, f"one key made {len(bench.created())} creations"
        assert _end(first).message == _end(second).message
    else:
        await _exchange(harness, _ask("1"))
        await _exchange(bench.harness(), _ask("2"))
        assert len(bench.created()) == 2, "two keys are two creations"


# Turns of an agent


async def whatever_is_cut_off_is_said_once(bench: Bench) -> None:
    """Cut at every event, broken and as if it were over: one creation, the whole answer, and no preview twice."""
    bench.clear(_LINE)
    whole = await _exchange(bench.harness(), _ask("1"))
    places = len(whole) - 1 - next(place for place, event in enumerate(whole) if isinstance(event, Known))
    for clean in (False, True):
        for after in range(places):
            bench.clear(_LINE)
            bench.cut(after, clean=clean)
            listening = Listening(bench.harness())
            how = f"cut {'cleanly ' if clean else ''}after {after} events"
            assert await _result(listening) == _LINE, f"{how}, the answer is another"
            assert len(bench.created()) == 1, f"{how}, {len(bench.created())} exchanges were created"
            shown = [event.id for event in listening.events if isinstance(event, Told) and event.id]
            assert len(shown) == len(set(shown)), f"{how}, previews came twice: {shown}"


async def what_is_cut_off_under_way_is_shown_once(bench: Bench) -> None:
    """Attached to again while it is under way, behind the last event that was seen: no word comes twice."""
    if not getattr(bench, "tells", False):
        return
    for after in (1, 2):
        bench.clear(_LINE)
        bench.hold()
        bench.cut(after, clean=False)
        listening = Listening(bench.harness())
        result = asyncio.ensure_future(_result(listening))
        async with asyncio.timeout(LIMIT_SECONDS):
            while _LINE.split()[-1] not in listening.text and not result.done():
                await listening.heard()
        bench.release()
        assert await result == _LINE, f"cut after {after} events, the answer is another"
        assert listening.text.split() == _LINE.split(), f"cut after {after} events, it showed {listening.text!r}"
        assert len(bench.created()) == 1, f"{len(bench.created())} exchanges were created"


async def wherever_a_worker_dies_the_turn_is_that_of_an_unbroken_one(bench: Bench) -> None:
    """One creation for each exchange whose handle was known; every other one is a doubt that is shown; no fork."""
    takes_tools = bench.harness().takes_tools
    lines: Sequence[Any] = ([call("note", text="a"), call("note", text="b")], _LINE) if takes_tools else (_LINE,)
    again: Any = _Again(bench)
    agent = Agent("kit", harness=again, tools=[_note] if takes_tools else [], retry=_QUICK)
    said: list[Any] = []

    def check(ended: RunEnded) -> None:
        assert ended.status is Status.COMPLETED, f"it is {ended.status}: {ended.reason}"
        said.append(msgspec.to_builtins(transcript(ended.entries)))
        assert said[-1] == said[0], "what was said differs"
        doubts = sum(isinstance(entry, e.StepDoubted) for entry in ended.entries)
        created = bench.created()
        assert len(created) <= len(lines) + doubts, (
            f"{len(created)} creations for {len(lines)} exchanges and {doubts} doubts"
        )
        assert not _forks(created), f"the chain forks behind {_forks(created)}"

    survived = await every_crash(
        agent, "hello", setup=lambda: bench.clear(*lines), check=check, allow_doubt=True, timeout=LIMIT_SECONDS
    )
    assert survived.crashes >= 6, f"only {survived.crashes} deaths were tried"


async def a_cap_that_is_reached_is_a_limit(bench: Bench) -> None:
    """What ended because it may not go on has not completed."""
    if not bench.caps:
        return
    bench.clear(_LINE)
    bench.cap()
    ending = await _ending(bench.harness())
    assert "HarnessLimit" in ending, f"it reached a cap, which is a limit: {ending}"


async def cancelling_a_run_cancels_what_it_began(bench: Bench) -> None:
    """The end that somebody asks for goes down to the service."""
    bench.clear(_LINE)
    bench.hold()
    try:
        agent = Agent("kit", harness=bench.harness(), retry=_QUICK)
        async with open("memory://", App(agent)) as runtime, asyncio.timeout(LIMIT_SECONDS):
            run = await runtime.start(agent, "hello")
            await _known(run)
            await run.cancel("enough")
            await runtime.client.wait(run.id)
            info = await run.info()
        assert info.status is Status.CANCELLED, f"it was cancelled, and is {info.status}"
        assert list(bench.cancelled()) == [bench.created()[0].id], "what it began goes on"
    finally:
        bench.release()


async def a_shutdown_cancels_nothing_and_another_process_goes_on(bench: Bench) -> None:
    """What a process leaves under way goes on without it, and the next one attaches to it."""
    bench.clear(_LINE)
    bench.hold()
    with TemporaryDirectory(prefix="holdfast-") as folder:
        store = f"sqlite:///{folder}/store.db"
        agent = Agent("kit", harness=bench.harness(), retry=_QUICK)
        async with asyncio.timeout(LIMIT_SECONDS):
            async with open(store, App(agent)) as runtime:
                run = await runtime.start(agent, "hello")
                await _known(run)
            assert list(bench.cancelled()) == [], "a shutdown cancelled it"
            bench.release()
            agent = Agent("kit", harness=bench.harness(), retry=_QUICK)
            async with open(store, App(agent)) as runtime:
                again = await runtime.get(run.id, of=agent)
                assert await again.result(timeout=LIMIT_SECONDS) == _LINE
    assert len(bench.created()) == 1, "it was created again"


CHECKS: Final[Sequence[Check]] = (
    it_reports_a_handle_and_then_its_end,
    the_next_exchange_goes_on_behind_the_last,
    what_has_ended_is_found_again_as_it_was,
    it_gives_strictly_what_follows_an_event,
    it_takes_no_cursor_but_its_own,
    what_was_created_is_never_denied,
    one_key_is_one_creation,
    whatever_is_cut_off_is_said_once,
    what_is_cut_off_under_way_is_shown_once,
    wherever_a_worker_dies_the_turn_is_that_of_an_unbroken_one,
    a_cap_that_is_reached_is_a_limit,
    cancelling_a_run_cancels_what_it_began,
    a_shutdown_cancels_nothing_and_another_process_goes_on,
)


class _Again:
    """A harness made anew for each session, as each process makes its own."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._first = bench, bench.harness()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first, name)

    async def open(self, start: Start) -> Any:
        """Open a session of another one."""
        return await self._bench.harness().open(start)


@tool(effect="repeat")
async def _note(text: str) -> str:
    """Note something."""
    return f"noted {text}"


def _ask(key: str, cursor: Any = None) -> Ask:
    return Ask(messages=_MESSAGES, cursor=cursor, key=f"kit-{key}")


async def _exchange(harness: Harness, ask: Ask) -> list[Event]:
    session = await harness.open(Start(cursor=ask.cursor, version=harness.version))
    try:
        return await _listed(session.create(ask))
    finally:
        await session.close()


async def _attach(harness: Harness, ask: Ask, handle: Any, after: str | None) -> list[Event]:
    session = await harness.open(Start(cursor=ask.cursor, version=harness.version))
    try:
        return await _listed(session.attach(ask, handle, after))
    finally:
        await session.close()


async def _listed(events: Any) -> list[Event]:
    async with asyncio.timeout(LIMIT_SECONDS):
        return [event async for event in events]


def _end(events: Sequence[Event]) -> Ended:
    last = events[-1] if events else None
    assert isinstance(last, Ended), f"the last event is the end, and not {last!r}"
    return last


def _handle(events: Sequence[Event]) -> Any:
    return [event.handle for event in events if isinstance(event, Known)][-1]


async def _result(harness: Any) -> Any:
    agent = Agent("kit", harness=harness, retry=_QUICK)
    async with open("memory://", App(agent)) as runtime:
        return await (await runtime.start(agent, "hello")).result(timeout=LIMIT_SECONDS)


async def _ending(harness: Any) -> str:
    try:
        return f"it completed with {await _result(harness)!r}"
    except RunError as error:
        return error.reason


async def _known(run: Any) -> None:
    """Wait until the handle of what a run began is on disk."""
    async for event in run.events():
        if isinstance(event, e.CursorMoved) and event.step is not None:
            return


def _forks(created: Sequence[Creation]) -> list[str]:
    """Return behind what the chain goes on more than once; what nothing goes on behind was given up."""
    parents = {one.parent for one in created}
    kept = [one.parent for one in created if one.parent is not None and one.id in parents]
    return sorted({parent for parent in kept if kept.count(parent) > 1})
