"""`holdfast answer`: a person decides, for exactly what they were shown."""

import os
import pty
import pwd
import re
import subprocess
import sys

import pytest

from tests.surface.command import SECONDS, Shell

ASKING = """
import holdfast as hf

@hf.durable
async def buy(ctx: hf.Context, item: str, expires: float | None = None) -> str:
    told = await ctx.ask("Buy it?", show={"item": item}, args={"cents": 900}, expires=expires)
    if told.expired:
        return "expired"
    return f"{told.args['cents']} by {told.by}" if told else f"no: {told.note}"

@hf.durable
async def both(ctx: hf.Context) -> list[bool]:
    return [bool(told) for told in await ctx.gather(ctx.ask("One?"), ctx.ask("Two?"))]

@hf.durable
async def pack(ctx: hf.Context) -> str:
    await ctx.sleep(0.5)
    return "packed"

@hf.durable
async def desk(ctx: hf.Context, item: str) -> str:
    return await ctx.run(buy, item)

@hf.durable
async def order(ctx: hf.Context, item: str) -> list[str]:
    return list(await ctx.gather(ctx.run(desk, item), ctx.run(pack)))
"""


GIVING = """
import holdfast as hf

def one() -> int:
    return 1

@hf.durable
async def send(ctx: hf.Context) -> int:
    return await ctx.step(one) + await ctx.step(one)

@hf.durable
async def parent(ctx: hf.Context) -> int:
    return await (await ctx.spawn(send, key="mail", budget=hf.Budget(steps=1))).result()
"""


@pytest.fixture
def asking(shell: Shell) -> Shell:
    """A folder whose program asks."""
    (shell.folder / "asking.py").write_text(ASKING)
    return shell


def asked(shell: Shell, key: str = "k") -> str:
    """Return a question that a run asks."""
    ran = shell("run", "asking.py:buy", "tea", "--key", key, "--json")
    assert ran.status == 6
    question: str = ran.error["questions"][0]["id"]
    return question


def changing(question: str) -> str:
    """Return the line that tells how to agree to something else."""
    return f"  holdfast answer {question} --yes --args '{{\"cents\":900}}'\n"


def test_a_run_that_asks_exits_with_6_and_the_commands_it_prints_answer_it(asking: Shell) -> None:
    """Whoever copies what stands on the screen, line by line, sees the run end."""
    ran = asking("run", "asking.py:buy", "tea", "--key", "k")
    assert ran.status == 6
    assert "waits for an answer: Buy it?" in ran.err
    commands = [line.strip() for line in ran.err.splitlines() if line.startswith("  holdfast ")]
    yes, no, _, again = commands
    assert yes.endswith("--yes")
    assert no.endswith("--no")
    assert asking.copied(yes).status == 0
    assert asking.copied(again).value == "900 by grace"


def test_a_run_whose_child_asks_exits_with_6_once_nothing_else_goes_on(asking: Shell) -> None:
    """The question may be anywhere below; whoever copies what is printed sees the run end."""
    ran = asking("run", "asking.py:order", "tea", "--key", "k")
    assert ran.status == 6
    assert "waits for an answer: Buy it?" in ran.err
    assert "child buy" in ran.err
    yes, _, _, again = [line.strip() for line in ran.err.splitlines() if line.startswith("  holdfast ")]
    assert asking.copied(yes).status == 0
    assert asking.copied(again).value == ["900 by grace", "packed"]


def test_show_of_a_parent_prints_what_its_descendants_need(asking: Shell) -> None:
    """Whoever looks at the run that they started need not look for the one that asks."""
    question = asking("run", "asking.py:order", "tea", "--key", "k", "--json").error["questions"][0]["id"]
    drawn = asking("show", "k").out
    needs = f"\nThose below it need:\n  holdfast answer {question}\n{changing(question)}"
    assert drawn.endswith(needs)
    asking("answer", question, "--yes")
    asking("run", "asking.py:order", "tea", "--key", "k")
    assert "Those below it need" not in asking("show", "k").out


def test_show_of_a_parent_prints_what_raises_its_child(asking: Shell) -> None:
    """A child that has used up its budget holds its parent up until somebody gives it more."""
    (asking.folder / "giving.py").write_text(GIVING)
    asking("run", "giving.py:parent", "--key", "k")
    shown = asking("show", "k").out
    child = asking("show", "k", "--json").value["children"][0]["id"]
    assert shown.endswith(f"\nThose below it need:\n  holdfast raise {child} steps=100\n")
    assert re.search(rf"▸ =mail +child send {child}\n", shown)


def test_what_is_decided_about_is_shown_before_it_is_decided(asking: Shell) -> None:
    """Text, what is shown and what may be changed stand there, with the run that asks."""
    question = asked(asking)
    ran = asking("answer", question, "--no", "--note", "too dear", "--by", "ada")
    shown, _, said = ran.err.partition("✓")
    assert "Buy it?" in shown
    assert '{"item":"tea"}' in shown
    assert '{"cents":900}' in shown
    assert question.partition(".")[0] in shown
    assert "no, by ada" in said
    assert asking("run", "asking.py:buy", "tea", "--key", "k").value == "no: too dear"


def test_what_the_question_lets_be_changed_can_be_changed(asking: Shell) -> None:
    """The run gets the arguments with the changes, and nothing that it did not offer."""
    question = asked(asking)
    assert asking("answer", question, "--yes", "--args", '{"dollars": 1}').status == 2
    assert asking("answer", question, "--yes", "--args", "[1]").status == 2
    assert asking("answer", question, "--yes", "--args", '{"cents": 5}', "--by", "bob").status == 0
    assert asking("run", "asking.py:buy", "tea", "--key", "k").value == "5 by bob"


@pytest.mark.parametrize("args", ["cents=3", "[3]", "{cents: 3}"])
def test_changes_that_are_no_object_are_refused_with_one_that_is_taken(asking: Shell, args: str) -> None:
    """The hint has the question's own values, and whoever copies it is not refused again."""
    question = asked(asking)
    ran = asking("answer", question, "--yes", "--args", args)
    assert ran.status == 2
    command = ran.err.splitlines()[-1].strip()
    assert command == changing(question).strip()
    assert asking.copied(command).status == 0


def test_changes_to_what_cannot_be_changed_are_told_to_be_left_out(asking: Shell) -> None:
    """A question without arguments has no object that would be taken."""
    [one, _] = asking("run", "asking.py:both", "--json").error["questions"]
    ran = asking("answer", one["id"], "--yes", "--args", "cents=3")
    assert ran.status == 2
    assert "This question lets nothing be changed: leave out --args." in ran.err


def test_without_a_question_those_that_are_open_are_listed(asking: Shell) -> None:
    """The list has what is needed to answer, for people and for programs; `ls --questions` is the same list."""
    assert "no open questions" in (asking("run", "program.py:count", "1"), asking("answer"))[1].err
    first, second = asked(asking, "a"), asked(asking, "b")
    for words in (["answer"], ["ls", "--questions"]):
        listed = asking(*words)
        assert listed.status == 0
        assert first in listed.out
        assert second in listed.out
        assert "Buy it?" in listed.out
        assert f"answer one: holdfast answer {first}\n{changing(first)}" in listed.err
        one, other = asking(*words, "--json").values
        assert (one["id"], one["show"], one["args"]) == (first, {"item": "tea"}, {"cents": 900})
        assert other["id"] == second
    assert asking("answer", "--yes").status == 2
    assert asking("ls", "--questions", "--status", "failed").status == 2


def test_the_first_answer_stands(asking: Shell) -> None:
    """A second one is a conflict, whatever it says."""
    question = asked(asking)
    asking("answer", question, "--yes", "--by", "ada")
    ran = asking("answer", question, "--no", "--json")
    assert (ran.status, ran.error["code"]) == (4, "conflict")
    assert asking("run", "asking.py:buy", "tea", "--key", "k").value == "900 by ada"
    assert asking("answer", question, "--no").status == 4


def test_an_answer_for_something_else_than_is_shown_is_refused(asking: Shell) -> None:
    """A program that showed it elsewhere names what it showed."""
    question = asked(asking)
    [listed] = asking("answer", "--json").values
    assert asking("answer", question, "--yes", "--shown", "0" * 64).status == 4
    ran = asking("answer", question, "--yes", "--shown", listed["shown"], "--json")
    assert ran.value == {
        "question": question, "run": listed["run"], "yes": True, "args": None, "shown": listed["shown"], "by": "grace",
        "note": None, "worker": False,
    }  # fmt: skip


def test_a_run_stands_for_the_only_question_that_it_asks(asking: Shell) -> None:
    """Where it asks several, they are named and none is picked."""
    run = asked(asking).partition(".")[0]
    assert asking("answer", run, "--yes").status == 0
    two = asking("run", "asking.py:both", "--json").error
    ran = asking("answer", two["run"], "--yes")
    assert ran.status == 2
    assert all(f"{question['id']}  {question['text']}" in ran.err for question in two["questions"])
    for question in two["questions"]:
        assert asking("answer", question["id"], "--yes", "--quiet").err == ""
    assert asking("run", "asking.py:both", "--resume", two["run"]).value == [True, True]


def test_what_nobody_asks_is_not_found(asking: Shell) -> None:
    """Neither a question that is not there, nor one of a run that asks nothing."""
    question = asked(asking)
    run = asking("run", "program.py:count", "1", "--json").value["id"]
    assert asking("answer", f"{question}9", "--yes").status == 3
    assert asking("answer", run, "--yes").status == 3
    assert asking("answer", "00000000-0000-7000-8000-000000000000", "--yes").status == 3
    assert asking("answer", "nonsense", "--yes").status == 3


def test_without_a_terminal_a_decision_must_be_said(asking: Shell) -> None:
    """A script never hangs at a prompt, and decides nothing by silence."""
    ran = asking.start("answer", asked(asking)).end()
    assert ran.status == 2
    assert "say --yes or --no" in ran.err


def test_on_a_terminal_the_person_is_asked(asking: Shell) -> None:
    """The question is shown, and what they type is the answer."""
    question = asked(asking)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "answer", question, "--by", "ada"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True) as answering:
        os.close(theirs)
        os.write(ours, b"y\n")
        _, said = answering.communicate(timeout=SECONDS)
    os.close(ours)
    assert answering.returncode == 0, said
    assert said.index("Buy it?") < said.index("Yes?") < said.index("yes, by ada")
    assert asking("run", "asking.py:buy", "tea", "--key", "k").value == "900 by ada"


def test_show_draws_the_question_and_how_it_was_decided(asking: Shell) -> None:
    """While it is open the command that answers it stands under the drawing."""
    question = asked(asking)
    drawn = asking("show", "--key", "k")
    assert "│ ? ask#1  asks: Buy it?" in drawn.out
    assert "╰ ‖ rests: waits for an answer: Buy it?" in drawn.out
    assert drawn.out.endswith(f"Answer it:\n  holdfast answer {question}\n{changing(question)}")
    assert asking("show", "--key", "k", "--json").value["questions"][0]["id"] == question
    assert "waits for an answer: Buy it?" in asking("ls").out
    asking("answer", question, "--no", "--by", "ada", "--note", "too dear")
    asking("run", "asking.py:buy", "tea", "--key", "k")
    drawn = asking("show", "--key", "k")
    assert re.search(r"│ ✗ ask#1 +[\d.]+ m?s  no, says ada \(too dear\)", drawn.out)
    assert asking("show", "--key", "k", "--json").value["questions"] == []


def test_a_question_whose_time_is_over_is_decided_by_nobody(asking: Shell) -> None:
    """Its run goes on without an answer, and says so."""
    ran = asking("run", "asking.py:buy", "tea", "0.05", "--key", "k")
    assert ran.value == "expired"
    assert "nobody answered in time" in asking("show", "--key", "k").out


def test_the_shell_completes_open_questions(asking: Shell) -> None:
    """Their ids are offered with their texts."""
    question = asked(asking)
    environment = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_LINE": "holdfast answer ",
    }
    command = [sys.executable, "-c", "from holdfast.cli import commands; commands(prog_name='holdfast')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert f"plain,{question}" in done.stdout, done.stderr


def test_a_change_of_another_kind_is_refused_and_one_that_fits_is_told(asking: Shell) -> None:
    """A slip of the finger does not become what is paid; who looks later sees what was agreed to."""
    question = asked(asking)
    wrong = asking("answer", question, "--yes", "--args", '{"cents": "five"}')
    assert wrong.status == 2
    assert "cents is a number, such as 900, not 'five'" in wrong.err
    assert "cents 900 → 700" in asking("answer", question, "--yes", "--args", '{"cents": 700}').err
    assert asking("run", "asking.py:buy", "tea", "--key", "k").value == "700 by grace"
    assert 'yes, says grace  {"cents":700}' in asking("show", "--key", "k").out


def test_a_question_that_was_decided_is_a_conflict_that_tells_how(asking: Shell) -> None:
    """Whoever comes second learns who was first."""
    question = asked(asking)
    assert asking("answer", question, "--no", "--by", "ada").status == 0
    asking("run", "asking.py:buy", "tea", "--key", "k")
    second = asking("answer", question, "--yes")
    assert second.status == 4
    assert "was answered before: no, by ada" in second.err


@pytest.mark.parametrize("words", [("--yes", "--no"), ("--no", "--yes")])
def test_yes_and_no_together_are_refused_and_nothing_is_decided(asking: Shell, words: tuple[str, str]) -> None:
    """An answer cannot be taken back, so one that says both is none."""
    question = asked(asking)
    refused = asking("answer", question, *words)
    assert refused.status == 2
    assert "--yes or --no, not both" in refused.err
    assert question in asking("ls", "--questions").out


def test_the_command_that_changes_what_is_agreed_to_is_printed_with_the_present_values(asking: Shell) -> None:
    """Whoever edits a number in what stands on the screen has agreed to that number."""
    ran = asking("run", "asking.py:buy", "tea", "--key", "k")
    [line] = [line.strip() for line in ran.err.splitlines() if "--args" in line]
    assert asking.copied(line.replace("900", "700")).status == 0
    assert asking("run", "asking.py:buy", "tea", "--key", "k").value == "700 by grace"


def test_a_name_that_may_not_be_changed_is_refused_with_those_that_may(asking: Shell) -> None:
    """Whoever mistypes a name reads the right one."""
    refused = asking("answer", asked(asking), "--yes", "--args", '{"cent": 700}')
    assert refused.status == 2
    assert "lets nobody change cent\nIt lets you change: cents.\n" in refused.err


@pytest.mark.parametrize("user", [None, "linus"])
def test_who_decides_is_who_is_at_the_keyboard(
    asking: Shell, monkeypatch: pytest.MonkeyPatch, user: str | None
) -> None:
    """Without --by the journal has the system's name for them, and not nobody's."""
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    if user is not None:
        monkeypatch.setenv("USER", user)
    asking("answer", asked(asking), "--yes")
    own = pwd.getpwuid(os.getuid()).pw_name
    assert asking("run", "asking.py:buy", "tea", "--key", "k").value == f"900 by {user or own}"
