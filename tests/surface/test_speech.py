"""An agent's run as it is watched: words as they come, tools as they end, and what it took."""

import asyncio
import io
import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from rich.console import Console

import holdfast as hf
from holdfast import events as ev
from holdfast.cli.bill import Bill
from holdfast.cli.speech import Speech
from holdfast.cli.surface import Surface
from holdfast.cli.writer import Writer
from holdfast.core.entry import ErrorInfo
from holdfast.core.message import Part, Text, ToolCall, ToolResult
from tests.surface.command import Shell


@pytest.fixture
def agents(shell: Shell) -> Shell:
    """A folder with agents in it."""
    shutil.copy(Path(__file__).with_name("agents.py"), shell.folder / "agents.py")
    return shell


def added(seq: int, role: str, step: str, *parts: Part, **more: Any) -> ev.MessageAdded:
    """Return the entry of a message."""
    raw = Raw(msgspec.json.encode(list(parts)))
    return ev.MessageAdded(id=str(seq), seq=seq, at=seq * 1000, role=role, step=step, raw=raw, **more)


def chunk(text: str, *, attempt: int = 1, fence: int = 1, number: int = 1) -> ev.Chunk:
    """Return some words of the first generation."""
    raw = Raw(msgspec.json.encode({"kind": "text", "text": text}))
    return ev.Chunk(
        id=f"1:{fence}:{number}", run="", seq=1, at=0, fence=fence, number=number, step="0/model#1", attempt=attempt,
        offset=0, raw=raw,
    )  # fmt: skip


def screen(events: Sequence[ev.Event], width: int = 80) -> str:
    """Return what stands on a screen that shows these events."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=width, legacy_windows=False)
    surface = Surface("memory://")
    surface.__dict__["err"] = Console(file=file, force_terminal=False, width=width)

    async def tell() -> None:
        async with hf.testing.open() as runtime:
            speech = Speech(surface, runtime.client, console)
            with speech.working():
                for event in events:
                    await speech.tell(event, None)

    asyncio.run(tell())
    return file.getvalue()


def test_words_that_were_shown_as_they_came_are_not_shown_again() -> None:
    """The message completes the preview: what was missing is added, and nothing comes twice."""
    shown = screen(
        [chunk("It is "), chunk("paid ", number=2), added(2, "assistant", "0/model#1", Text("It is paid back."))]
    )
    assert shown.strip() == "It is paid back."
    assert screen([chunk("It is "), added(2, "assistant", "0/model#1", Text("It is"))]).strip() == "It is"
    whole = added(2, "assistant", "0/model#1", Text("\n\nHello there."))
    blank: list[ev.Event] = [chunk("\n\n"), chunk("Hello ", number=2), whole]
    assert screen(blank).strip() == "Hello there."


def test_an_answer_that_was_left_in_the_middle_is_told_whole_when_it_is_there() -> None:
    """Who stopped listening and goes on gets the message, and no second half of a preview."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=80)

    async def tell() -> None:
        async with hf.testing.open() as runtime:
            speech = Speech(Surface("memory://"), runtime.client, console)
            await speech.tell(chunk("It is "), None)
            speech.break_off()
            await speech.tell(chunk("paid ", number=2), None)
            await speech.tell(added(2, "assistant", "0/model#1", Text("It is paid back.")), None)

    asyncio.run(tell())
    assert [line for line in file.getvalue().splitlines() if line] == ["It is", "It is paid back."]


def test_a_preview_that_came_to_nothing_is_ended_where_it_stands() -> None:
    """Who reads along is told that an answer was broken off, before the next begins."""
    error = ev.StepFailed(
        id="2", seq=2, at=0, step="0/model#1", digest="", retry_at=1_000_000,
        error=ErrorInfo(type="ModelCut", message="the stream broke"),
    )  # fmt: skip
    said = added(3, "assistant", "0/model#1", Text("Another one."), attempt=2)
    lines = [line.strip() for line in screen([chunk("It is "), error, chunk("Another ", attempt=2), said]).splitlines()]
    assert [line for line in lines if line] == [
        "It is", "✗ broken off: the stream broke (attempt 1, asked again in 1.0 s)", "Another one.",
    ]  # fmt: skip


def test_a_preview_of_a_worker_that_died_is_ended_by_that_of_the_next() -> None:
    """Words of two owners never run together."""
    shown = screen(
        [chunk("It is "), chunk("Another ", fence=2), added(2, "assistant", "0/model#1", Text("Another one."))]
    )
    assert "It is\n" in shown
    assert "broken off" in shown
    assert "Another one.\n" in shown


def test_a_call_that_may_have_happened_says_so() -> None:
    """A doubt is on the screen with the tool's name and effect, and so is what the model is told."""
    effect = hf.Effect.ONCE
    shown = screen([
        added(2, "assistant", "0/model#1", ToolCall("a", "refund", '{"cents": 5}')),
        ev.StepStarted(id="3", seq=3, at=3000, step="0/gather#1.1/refund#1", digest="", effect=effect),
        ev.StepDoubted(id="4", seq=4, at=4000, step="0/gather#1.1/refund#1", why="crash"),
        added(5, "tool", "0/gather#1.1/answer#1", ToolResult("a", "refund", "The outcome is unknown", error=True)),
    ], width=160)  # fmt: skip
    assert "? refund(cents=5)  once · in doubt: the process died before the outcome was recorded" in shown
    assert "✗ refund(cents=5)  outcome unknown" in shown


def test_lines_break_between_words_but_not_in_code() -> None:
    """Text fits the screen, code stays as it is, and nothing can move the cursor."""
    file = io.StringIO()
    writer = Writer(Console(file=file, force_terminal=True, width=12))
    for piece in ("one tw", "o three four\n", "```\none two three four\n```\n", "a\x1b[2J\rb"):
        writer.write(piece)
    writer.end()
    assert file.getvalue() == "one two\nthree four\n```\none two three four\n```\na\\x1b[2J\\rb\n"


def test_on_a_pipe_an_agents_answer_is_all_that_stdout_gets(agents: Shell) -> None:
    """Another program reads the answer as it is; calls, attempts and cost are on stderr."""
    ran = agents("run", "agents.py:clerk", "Order 42 is broken.", "--key", "t1")
    assert (ran.status, ran.out) == (0, "It is paid back.\n")
    for said in ("» I look it up.", '▸ look(order="42")', '✓ refund(order="42", cents=4200)  once · ', "cost unknown"):
        assert said in ran.err
    again = agents("run", "agents.py:clerk", "Order 42 is broken.", "--key", "t1", "--quiet")
    assert (again.out, again.err) == ("It is paid back.\n", "")
    assert agents.ledger() == ["refund 42 4200"]
    assert agents("run", "agents.py:counter", "Count.").value == [1, 2]
    assert agents("run", "agents.py:counter", "Count.", "--json").value["result"] == [1, 2]


def test_what_needs_a_persons_agreement_says_how_to_give_it(agents: Shell) -> None:
    """The run exits with 6 and commands that can be copied; after the yes it goes on."""
    ran = agents("run", "agents.py:keeper", "Wipe it.")
    assert ran.status == 6
    assert '? wipe(disk="sda")  asks: Call wipe?' in ran.err
    [yes] = [line.strip() for line in ran.err.splitlines() if line.endswith("--yes")]
    assert agents.copied(yes).status == 0
    assert agents.copied(ran.err.splitlines()[-1].strip()).out == "It is done.\n"


def test_an_answer_that_is_interrupted_goes_on_by_the_command_that_is_printed(agents: Shell) -> None:
    """Ctrl-C in the middle of a generation exits with 130 and says how to go on; nothing else is printed."""
    (agents.folder / "gate").touch()
    started = agents.start("run", "agents.py:gated", "Count.")
    started.wait_for("at the gate")
    ran = started.end(signal.SIGINT)
    assert (ran.status, ran.out) == (130, "")
    assert "Traceback" not in ran.err
    (agents.folder / "gate").unlink()
    assert agents.copied(ran.err.splitlines()[-1].strip()).out == "One two three four five.\n"


def test_what_is_not_known_of_a_cost_is_unknown_and_never_nothing() -> None:
    """A sum of money is only told whole where every generation has a price."""
    bill = Bill()
    bill.take(
        added(1, "assistant", "0/model#1", usage={"input": 1200, "output": 30, "cached": 1000, "cost": 2_143_000})
    )
    assert bill.words == "1,200 tokens in (1,000 cached), 30 out · $0.00214"
    bill.take(added(2, "assistant", "0/model#2", usage={"input": 1, "output": 1}))
    assert bill.words.endswith("$0.00214 and 1 generation of unknown cost")
    assert bill.form()["cost"] is None
    bill.take(added(3, "assistant", "0/model#3"))
    assert "1,201 tokens in (1,000 cached), 31 out and 1 generation unknown" in bill.words
    assert json.loads(msgspec.json.encode(bill.form()))["input"] is None
