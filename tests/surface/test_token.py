"""`holdfast answer --token`: an outside system or a mail link answers one wait."""

import signal

import pytest

from tests.surface.command import Shell

CALLING = """
import holdfast as hf
from pathlib import Path

paid = hf.Signal("paid", int)

def send(token: str) -> None:
    Path("token").write_text(token)

@hf.durable
async def buy(ctx: hf.Context) -> str:
    asked = await ctx.callback("Buy it?", show={"item": "tea"}, args={"cents": 900})
    await ctx.step(send, asked.token)
    told = await asked.result()
    return f"{told.args['cents']} by {told.by}" if told else f"no: {told.note}"

@hf.durable
async def sell(ctx: hf.Context) -> int | None:
    called = await ctx.callback(paid, expires=0.2)
    await ctx.step(send, called.token)
    return await called.result()
"""


@pytest.fixture
def calling(shell: Shell) -> Shell:
    """A folder whose program gives tokens away."""
    (shell.folder / "calling.py").write_text(CALLING)
    return shell


def token_of(shell: Shell) -> str:
    """Return the token that the program sent."""
    return (shell.folder / "token").read_text()


def test_a_token_answers_its_question_and_is_not_printed(calling: Shell) -> None:
    """What is decided about is shown first; the first answer stands, and the same again is the same."""
    assert calling("run", "calling.py:buy", "--key", "k").status == 6
    token = token_of(calling)
    answer = ("answer", "--token", token, "--yes", "--args", '{"cents": 700}')
    ran = calling(*answer, "--by", "ann")
    assert ran.status == 0
    assert "Buy it?" in ran.err
    assert calling(*answer).status == 0
    refused = calling("answer", "--token", token, "--no", "--json")
    assert (refused.status, refused.error["code"]) == (4, "already_answered")
    assert calling("run", "calling.py:buy", "--key", "k").value == "700 by ann"
    for one in (ran, refused, calling("show", "--key", "k"), calling("tail", refused.error["run"])):
        assert token not in one.out + one.err


@pytest.mark.parametrize("taken", [False, True], ids=["in the inbox", "in the journal"])
def test_the_same_answer_again_is_told_whose_counts(calling: Shell, taken: bool) -> None:
    """Whoever comes second learns that it was decided, and by whom, instead of being thanked for it."""
    calling("run", "calling.py:buy", "--key", "k")
    answer = ("answer", "--token", token_of(calling), "--yes")
    calling(*answer, "--by", "ann")
    if taken:
        calling("run", "calling.py:buy", "--key", "k")
    again = calling(*answer, "--by", "bob")
    assert again.status == 0
    assert "was answered before, by ann: yes" in again.err
    assert "by bob" not in again.err
    told = calling(*answer, "--by", "bob", "--json").value
    assert (told["before"], told["by"]) == (True, "ann")


def test_the_same_value_again_is_told_as_brought_before(calling: Shell) -> None:
    """A value has a sender too, if one was named."""
    (calling.folder / "calling.py").write_text(CALLING.replace("expires=0.2", "expires=None"))
    started = calling.start("run", "calling.py:sell", "--key", "k")
    started.wait_for("rests: ")
    started.end(signal.SIGKILL)
    answer = ("answer", "--token", token_of(calling), "--value", "5")
    assert calling(*answer, "--by", "shop", "--json").value["before"] is False
    assert "was answered before, by shop: signal paid" in calling(*answer).err


def test_a_token_that_is_unknown_or_past_its_time_is_refused(calling: Shell) -> None:
    """By different exit statuses, so that a script can tell."""
    assert calling("run", "calling.py:sell", "--key", "k").value is None
    token = token_of(calling)
    late = calling("answer", "--token", token, "--value", "5", "--json")
    assert (late.status, late.error["code"]) == (4, "expired")
    other = token[:-1] + ("y" if token.endswith("x") else "x")
    assert calling("answer", "--token", other, "--value", "5").status == 3


@pytest.mark.parametrize(
    "words",
    [("--value", "1"), (), ("QUESTION", "--yes"), ("--yes", "--shown", "0"), ("--yes", "--value", "1")],
    ids=str,
)
def test_what_does_not_fit_a_token_is_a_slip_of_usage(calling: Shell, words: tuple[str, ...]) -> None:
    """Nothing was answered then."""
    calling("run", "calling.py:buy", "--key", "k")
    assert calling("answer", "--token", token_of(calling), *words).status == 2
    assert calling("answer", "--value", "1").status == 2
    assert calling("answer", "--token", token_of(calling), "--no", "--note", "dear").status == 0
