"""Turns that a coding program takes: one session for a conversation, whatever becomes of the program."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.agent.harnesses.coding.spool import Spools
from holdfast.core import entry as e
from tests.agent.lines import LIMIT_SECONDS, entries_of
from tests.coding.conftest import is_there
from tests.coding.rig import AGAIN, KINDS, StandIn
from tests.rigs.waiting import until

WHOLE: list[list[Any]] = [["named"], ["keep"], ["echo"], ["end"]]


@pytest.fixture(params=KINDS)
def standin(tmp_path: Path, request: pytest.FixtureRequest) -> StandIn:
    """A stand-in of each kind."""
    return StandIn(tmp_path / "standin", request.param)


@pytest.fixture
def either(tmp_path: Path) -> StandIn:
    """A stand-in, where it does not matter of which kind."""
    return StandIn(tmp_path / "standin", "codex")


def coder(standin: StandIn, **options: Any) -> hf.Agent[str]:
    """Return an agent whose turns it takes."""
    agent = {name: options.pop(name) for name in ("instructions", "retry", "budget") if name in options}
    return hf.Agent("coder", harness=standin.harness(**options), workspace=standin.workspace, **agent)


SOON = hf.Retry(attempts=3, first=0.01, most=0.01)


async def ask(runtime: hf.Runtime, agent: hf.Agent[str], text: str, conversation: str | None = "chat") -> str:
    """Return what an agent answers."""
    run = await runtime.start(agent, text, conversation=conversation)
    return await run.result(timeout=LIMIT_SECONDS)


async def test_a_turn_sweeps_what_nobody_will_ask_for_any_more(either: StandIn) -> None:
    """Output of programs is kept for who resumes them, and not for ever."""
    agent = coder(either)
    spools = Spools(either.folder / "state")
    spools.place()
    for key in ("old", "young"):
        Path(spools.of(key).path).touch()
    os.utime(spools.of("old").path, (0, 0))
    async with hf.testing.open(hf.App(agent)) as runtime:
        await ask(runtime, agent, "one")
    assert (spools.has("old"), spools.has("young")) == (False, True)


async def test_a_conversation_is_one_session(standin: StandIn) -> None:
    """The first turn begins it, the next ones resume it, and each is told only what is new."""
    agent = coder(standin, instructions="Be brief.", model="m-1", arguments=["--more"])
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert await ask(runtime, agent, "one") == "you said: one"
        assert await ask(runtime, agent, "two") == "you said: two"
        assert await ask(runtime, agent, "other", "another chat") == "you said: other"
    first, second, other = standin.calls
    session = standin.resumed(second)
    assert session is not None
    assert [standin.resumed(first), standin.resumed(other)] == [None, None]
    assert len(standin.sessions) == 2
    assert standin.said(session) == ["asked: one", "said: you said: one", "asked: two", "said: you said: two"]
    for call in standin.calls:
        words = " ".join(call["words"])
        assert "--model m-1" in words
        assert "--more" in words
        assert "Be brief." in words


async def test_what_a_turn_took_is_what_it_took_alone(standin: StandIn) -> None:
    """A program that counts through its session is not charged twice for what earlier turns took."""
    agent = coder(standin)
    spent = []
    async with hf.testing.open(hf.App(agent)) as runtime:
        for text in ("one", "two", "three"):
            run = await runtime.start(agent, text, conversation="chat")
            await run.result(timeout=LIMIT_SECONDS)
            said = [entry for entry in await entries_of(run) if isinstance(entry, e.MessageAdded)]
            spent.append(said[-1].usage)
    cost = {"cost": 1_000_000} if standin.kind == "claude" else {}
    assert spent == [{"input": 20, "output": 2, "cached": 0, **cost}] * 3


async def test_a_program_that_dies_is_resumed_in_its_session_and_told_so(standin: StandIn) -> None:
    """What it had done is in the session: the request is not made as if it were new."""
    standin.plan([["named"], ["keep"], ["text", "half way"], ["die"]])
    agent = coder(standin, retry=SOON)
    async with hf.testing.open(hf.App(agent)) as runtime:
        answer = await ask(runtime, agent, "one")
    first, second = standin.calls
    assert first["prompt"] == "one"
    assert second["prompt"].startswith(AGAIN)
    assert second["prompt"].endswith("The request:\n\none")
    assert answer == f"you said: {second['prompt']}"
    assert standin.sessions == [standin.resumed(second)]


async def test_half_a_line_is_no_end(either: StandIn) -> None:
    """A program whose last line was cut off has not answered, even where it ends in peace."""
    either.plan([["named"], ["keep"], ["text", "nearly"], ["half"], ["exit", 0]])
    agent = coder(either, retry=SOON)
    async with hf.testing.open(hf.App(agent)) as runtime:
        answer = await ask(runtime, agent, "one")
    assert AGAIN in answer
    assert len(either.calls) == 2


async def test_what_is_no_event_and_what_is_not_known_says_nothing(either: StandIn) -> None:
    """Programs print warnings among their lines, and learn new events."""
    either.plan([["noise"], *WHOLE[:3], ["noise"], *WHOLE[3:], ["noise"]])
    agent = coder(either)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert await ask(runtime, agent, "one") == "you said: one"


async def test_a_turn_that_ended_well_is_believed_whatever_the_status(either: StandIn) -> None:
    """The last word counts: what fails while the program cleans up does not take it back."""
    either.plan([*WHOLE, ["exit", 3]])
    agent = coder(either)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert await ask(runtime, agent, "one") == "you said: one"
    assert len(either.calls) == 1


async def test_a_program_that_refuses_its_arguments_fails_the_run_with_what_it_says(either: StandIn) -> None:
    """It is not started again and again: its complaint and its status are the reason."""
    either.plan([["complain", "error: unexpected argument '--more'"], ["exit", 2]])
    agent = coder(either)
    async with hf.testing.open(hf.App(agent)) as runtime:
        with pytest.raises(hf.RunError, match=r"ended with status 2 .*unexpected argument '--more'"):
            await ask(runtime, agent, "one")
    assert len(either.calls) == 1


@pytest.mark.parametrize("status", [429, 500])
async def test_a_busy_provider_is_asked_again_in_the_same_session(standin: StandIn, status: int) -> None:
    """The program has given up, and the run has not."""
    standin.plan([["named"], ["keep"], ["fail", status], ["exit", 1]])
    agent = coder(standin, retry=SOON)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert AGAIN in await ask(runtime, agent, "one")
    assert standin.sessions == [standin.resumed(standin.calls[1])]


async def test_what_the_provider_refuses_fails_the_run_and_a_retry_goes_on_in_the_session(standin: StandIn) -> None:
    """A wrong key does not become right by asking again; once it is mended nothing is lost."""
    standin.plan([["named"], ["keep"], ["fail", 401], ["exit", 1]])
    agent = coder(standin, retry=SOON)
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "one")
        with pytest.raises(hf.RunError, match="401"):
            await run.result(timeout=LIMIT_SECONDS)
        assert len(standin.calls) == 1
        again = await run.retry()
        assert AGAIN in await again.result(timeout=LIMIT_SECONDS)
    assert standin.sessions == [standin.resumed(standin.calls[1])]


async def test_a_session_that_is_gone_fails_the_turn(standin: StandIn) -> None:
    """No turn is taken by a program that remembers nothing, as if it did."""
    agent = coder(standin, retry=SOON)
    async with hf.testing.open(hf.App(agent)) as runtime:
        await ask(runtime, agent, "one")
        (standin.folder / f"session-{standin.sessions[0]}.json").unlink()
        with pytest.raises(hf.RunError, match="is not there any more, and none is begun in its place"):
            await ask(runtime, agent, "two")
    assert len(standin.calls) == 2
    assert standin.sessions == []


async def test_a_session_that_was_never_written_down_is_begun_anew(standin: StandIn) -> None:
    """A program that died before it kept anything has done nothing: it is told the request as if it were new."""
    standin.plan([["named"], ["die"]])
    agent = coder(standin, retry=SOON)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert await ask(runtime, agent, "one") == "you said: one"
    assert [bool(standin.resumed(call)) for call in standin.calls] == [False, True, False]
    assert len(standin.sessions) == 1


async def test_a_program_that_died_before_it_named_itself_is_started_anew(standin: StandIn) -> None:
    """There is nothing to resume, and nothing was asked of a model."""
    standin.plan([["die"]])
    agent = coder(standin, retry=SOON)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert "you said: " in await ask(runtime, agent, "one")
    assert len(standin.sessions) == 1


async def test_a_program_that_writes_without_end_is_ended(either: StandIn) -> None:
    """A line of 17 MB is no event: the turn fails, and says why."""
    either.plan([["named"], ["keep"], ["wide", 17 * 1024 * 1024], ["hang"]])
    agent = coder(either)
    async with hf.testing.open(hf.App(agent)) as runtime:
        with pytest.raises(hf.RunError, match="a line of more than 16777216 bytes"):
            await ask(runtime, agent, "one")
    assert not is_there(either.calls[0]["pid"])


async def test_a_missing_program_says_how_to_install_it(either: StandIn) -> None:
    """It fails at once, before anything is written down of it."""
    agent = coder(either, program="no-such-program-here")
    async with hf.testing.open(hf.App(agent)) as runtime:
        with pytest.raises(hf.RunError, match="there is no program 'no-such-program-here' here; install it with: npm"):
            await ask(runtime, agent, "one")


async def test_a_workspace_that_is_missing_is_named(either: StandIn) -> None:
    """No program is started somewhere else."""
    agent = hf.Agent("coder", harness=either.harness(), workspace=either.folder / "gone")
    async with hf.testing.open(hf.App(agent)) as runtime:
        with pytest.raises(hf.RunError, match="gone cannot be used: No such file"):
            await ask(runtime, agent, "one")


async def test_a_conversation_stays_in_its_workspace(either: StandIn) -> None:
    """A session is found only from where it was begun: another directory is refused before anything is started."""
    (either.folder / "elsewhere").mkdir()
    agent = coder(either)
    moved = hf.Agent("moved", harness=either.harness(), workspace=either.folder / "elsewhere")
    async with hf.testing.open(hf.App(agent, moved)) as runtime:
        await ask(runtime, agent, "one")
        with pytest.raises(hf.RunError, match="its session is of"):
            await ask(runtime, moved, "two")
    assert len(either.calls) == 1


async def test_two_conversations_take_turns_in_one_workspace(either: StandIn) -> None:
    """Nobody is at work in a directory while another is: the second run rests until the first is done."""
    either.plan([["named"], ["keep"], ["hang"]])
    agent = coder(either, grace_seconds=0.1)
    async with hf.testing.open(hf.App(agent)) as runtime:
        first = await runtime.start(agent, "one", conversation="first")
        await until(lambda: _true(either.hangs))
        second = await runtime.start(agent, "two", conversation="second")
        await first.cancel()
        assert await second.result(timeout=LIMIT_SECONDS) == "you said: two"
    assert all(call["alone"] for call in either.calls)


async def test_a_cancel_ends_the_program_and_all_that_it_started(standin: StandIn) -> None:
    """When the run is cancelled, nothing of it is at work in the workspace any more."""
    shell = "echo $$ > shell; trap '' TERM; sleep 600 & wait; sleep 600"
    standin.plan([["named"], ["keep"], ["tool", shell]])
    agent = coder(standin)
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "one", conversation="chat")
        await until(lambda: _true(_read(standin.workspace / "shell")))
        await run.cancel()
        with pytest.raises(hf.RunError, match="cancelled"):
            await run.result(timeout=LIMIT_SECONDS)
        processes = [standin.calls[0]["pid"], int(_read(standin.workspace / "shell"))]
        assert not any(map(is_there, processes))
        assert await ask(runtime, agent, "two") == "you said: one\n\ntwo"


async def test_a_program_gets_its_own_variables_and_no_secrets(standin: StandIn, monkeypatch: Any) -> None:
    """Models run commands in its environment: what is no business of theirs is not there."""
    for name in ("HOLDFAST_TOKEN", "STRIPE_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret")
    shown = set(standin.harness().environment())
    own = "ANTHROPIC_API_KEY" if standin.kind == "claude" else "OPENAI_API_KEY"
    assert shown & {"HOLDFAST_TOKEN", "STRIPE_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"} == {own}
    assert {"PATH", "HOME", "STANDIN"} <= shown
    assert "PATH" in os.environ


async def test_a_cap_of_the_program_is_a_limit_and_no_answer(tmp_path: Path) -> None:
    """What it said until then is kept, and the next turn goes on behind it."""
    standin = StandIn(tmp_path / "standin", "claude")
    capped = {
        "subtype": "error_max_turns",
        "is_error": True,
        "result": None,
        "errors": ["Reached maximum number of turns (1)"],
    }
    standin.plan([["named"], ["keep"], ["text", "so far"], ["end", capped]])
    agent = coder(standin)
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "one", conversation="chat")
        with pytest.raises(hf.RunError, match="Reached maximum number of turns"):
            await run.result(timeout=LIMIT_SECONDS)
        assert await ask(runtime, agent, "two") == "you said: two"
    assert standin.sessions == [standin.resumed(standin.calls[1])]


async def test_a_session_whose_file_is_empty_is_left_alone(tmp_path: Path) -> None:
    """One that can neither be begun nor be resumed is given up for another; the run does not stand still."""
    standin = StandIn(tmp_path / "standin", "claude")
    standin.plan([["file"], ["die"]])
    agent = coder(standin, retry=SOON)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert await ask(runtime, agent, "one") == "you said: one"
    assert len(standin.sessions) == 2


async def _true(found: object) -> bool:
    return bool(found)


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


async def test_what_is_shown_while_it_works_are_its_words_and_its_commands(standin: StandIn) -> None:
    """Whoever watches sees what the program says and does, before the turn has ended."""
    standin.plan([["named"], ["keep"], ["text", "I look."], ["tool", "true"], ["hang"]])
    agent = coder(standin)
    seen: list[Any] = []
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "one")
        async with asyncio.timeout(LIMIT_SECONDS):
            async for event in run.events():
                seen.append(event)
                if len(_pieces(seen)) == 2:
                    break
        await run.cancel()
    text, call = _pieces(seen)
    assert text == {"kind": "text", "text": "I look."}
    assert (call["kind"], call["name"]) == ("call", "Bash" if standin.kind == "claude" else "command_execution")


def _pieces(seen: list[Any]) -> list[Any]:
    return [event.value for event in seen if isinstance(event, hf.events.Chunk)]
