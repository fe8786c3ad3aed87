"""Signals: each is received once, in order, whenever it was sent, by a run that asks for it."""

from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.errors import InvalidInput, InvalidValue
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, seen, soon

PAID = hf.Signal("paid", int)
SENT = hf.Signal("sent", str)


@hf.durable
async def collects(ctx: hf.Context, count: int) -> list[int]:
    """Return the first few payments."""
    return [await ctx.receive(PAID) for _ in range(count)]


async def test_a_signal_wakes_the_run_that_waits_for_it(every: Stage) -> None:
    """Its value comes with its sender, and is in the journal once."""
    async with every.open(collects) as runtime:
        run = await runtime.start(collects, 1)
        info = await parked(run, "signal")
        assert info.waiting_for == "signal: paid"
        assert await run.signal(PAID, 7, by="bank")
        assert await run.result(timeout=20) == [7]
        (received,) = [entry for entry in await entries_of(run) if isinstance(entry, events.SignalReceived)]
    assert (received.name, received.value, received.by) == ("paid", 7, "bank")


async def test_signals_that_were_sent_before_the_run_asked_are_received_in_order(every: Stage) -> None:
    """They wait in the inbox, the first before the second, however long nobody drives the run."""
    async with every.open(work=False) as runtime:
        run = await runtime.start(collects, 5)
        for number in range(5):
            await run.signal(PAID, number)
    async with every.open(collects) as runtime:
        run = await runtime.get(run.id)
        assert await run.result(timeout=20) == [0, 1, 2, 3, 4]
        assert "RunParked" not in await kinds_of(run)


async def test_a_signal_that_comes_while_a_step_is_under_way_waits(every: Stage) -> None:
    """It neither interrupts the step nor is it lost."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        await ctx.step(hurdle)
        return await ctx.receive(PAID)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await run.signal(PAID, 7)
        hurdle.open.set()
        assert await run.result(timeout=20) == 7


async def test_the_same_key_is_sent_once(every: Stage) -> None:
    """Also after the first was received: a sender that tries again does not pay twice."""
    async with every.open(collects) as runtime:
        run = await runtime.start(collects, 2)
        await parked(run, "signal")
        for _ in range(2):
            assert await run.signal(PAID, 7, key="invoice 7")
        await seen(run, lambda entry: isinstance(entry, events.SignalReceived))
        assert await run.signal(PAID, 7, key="invoice 7")
        assert await run.signal(PAID, 8, key="invoice 8")
        assert await run.result(timeout=20) == [7, 8]


async def test_a_receive_gives_up_at_its_time(every: Stage) -> None:
    """None says that nothing came; what comes later is for the next who asks."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int | None]:
        first = await ctx.receive(PAID, timeout=60)
        second = await ctx.receive(PAID)
        return [first, second]

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal")
        every.clock.advance(60)
        await seen(run, lambda entry: isinstance(entry, events.StepCompleted))
        await run.signal(PAID, 7)
        assert await run.result(timeout=20) == [None, 7]


async def test_of_several_signals_the_first_that_came_is_received(every: Stage) -> None:
    """The run is told which one it was, and the others stay for later."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        got = []
        for _ in range(2):
            found = await ctx.receive(PAID, SENT, timeout=3600)
            assert found is not None
            got.append([found[0].name, found[1]])
        return [*got, await ctx.receive(PAID, SENT, timeout=60)]

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal")
        await run.signal(SENT, "by mail")
        await seen(run, lambda entry: isinstance(entry, events.SignalReceived) and entry.name == "sent")
        await run.signal(PAID, 7)
        await seen(run, lambda entry: isinstance(entry, events.SignalReceived) and entry.name == "paid")
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.step == "0/receive#3")
        every.clock.advance(60)
        assert await run.result(timeout=20) == [["sent", "by mail"], ["paid", 7], None]


async def test_a_signal_of_another_name_is_not_taken(every: Stage) -> None:
    """Whoever asks for it later finds it in its place."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        return [await ctx.receive(PAID), await ctx.receive(SENT)]

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await run.signal(SENT, "by mail")
        await run.signal(PAID, 7)
        assert await run.result(timeout=20) == [7, "by mail"]


async def test_a_value_of_the_wrong_type_is_passed_over(every: Stage) -> None:
    """A slip of the sender's neither ends the run nor is it received; the next right one is."""
    async with every.open(collects) as runtime:
        run = await runtime.start(collects, 1)
        await parked(run, "signal")
        await run.signal("paid", "seven")
        await run.signal("paid", 7)
        assert await run.result(timeout=20) == [7]
        assert (await kinds_of(run)).count("SignalReceived") == 1
    async with every.open(work=False) as runtime:
        run = await runtime.get(run.id)
        with pytest.raises(InvalidValue):
            await run.signal(PAID, "seven")  # type: ignore[misc]


async def test_a_value_of_the_wrong_type_does_not_put_the_time_off(every: Stage) -> None:
    """The wait goes on to the time that it began with."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int | None:
        return await ctx.receive(PAID, timeout=60)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        began = every.clock()
        await parked(run, "signal")
        every.clock.advance(30)
        before = (await run.info()).last_seq
        await run.signal("paid", "seven")
        rest: Any = await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.seq > before)
        assert rest.due_at == began + 60_000_000
        every.clock.advance(30)
        assert await run.result(timeout=20) is None


async def test_two_branches_that_wait_for_the_same_signal_get_one_each(every: Stage) -> None:
    """No signal is given to both, and none is lost."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int]:
        return sorted(await ctx.gather(ctx.receive(PAID), ctx.receive(PAID)))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal")
        await run.signal(PAID, 1)
        await run.signal(PAID, 2)
        assert await run.result(timeout=20) == [1, 2]


async def test_a_signal_is_received_again_by_a_replay_with_the_same_value(every: Stage) -> None:
    """A structure comes back as what it was declared to be, live and replayed."""

    class Payment(msgspec.Struct):
        cents: int

    payment, hurdle, got = hf.Signal("payment", Payment), Hurdle(), list[Any]()

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        received = await ctx.receive(payment)
        got.append(received)
        await ctx.step(hurdle)
        return received.cents

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal")
        await run.signal(payment, Payment(7))
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with every.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == 7
    assert got == [Payment(7), Payment(7)]


async def test_a_signal_that_is_declared_otherwise_now_stops_the_run(every: Stage) -> None:
    """P7: what was received is not what the code asks for any more; it waits for code that fits, and has not failed."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        got = await ctx.receive(PAID)
        await ctx.sleep(60)
        return got

    @hf.durable(name="tale")
    async def changed(ctx: hf.Context) -> str:
        got = await ctx.receive(hf.Signal("paid", str))
        await ctx.sleep(60)
        return got

    async with every.open(tale, version="1") as runtime:
        run = await runtime.start(tale)
        await run.signal(PAID, 7)
        await parked(run, "sleep")
    every.clock.advance(60)
    async with every.open(changed, version="2") as runtime:
        await parked(await runtime.get(run.id), "diverged")
    async with every.open(tale, version="1") as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == 7


async def test_a_finished_run_takes_no_signal(every: Stage) -> None:
    """The sender is told."""
    async with every.open(collects) as runtime:
        run = await runtime.start(collects, 0)
        await run.result(timeout=20)
        assert not await run.signal(PAID, 7)


async def test_what_is_not_a_signal_is_refused_by_name(stage: Stage) -> None:
    """Before anything is recorded."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        for wrong in ((), ("paid",)):
            with pytest.raises(InvalidInput, match=r"hf\.Signal"):
                await ctx.receive(*wrong)
        return "refused"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == "refused"
        assert await kinds_of(run) == ["RunStarted", "RunFinished"]
