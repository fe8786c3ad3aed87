"""`holdfast show`: one run, with the boundaries of the processes that did it."""

import re
import signal

import pytest

from holdfast import events as ev
from holdfast.cli.lines import Stopwatch
from tests.surface.command import Shell


def killed_and_resumed(shell: Shell) -> None:
    """Kill a run at the gate, and let another process finish it."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--key", "k", "--label", "team=a")
    started.wait_for("at the gate")
    started.end(signal.SIGKILL)
    (shell.folder / "gate").unlink()


def test_a_run_is_drawn_with_the_process_that_died_and_the_one_that_went_on(shell: Shell) -> None:
    """Whoever looks sees what was performed by whom, and that the rest came from the journal."""
    killed_and_resumed(shell)
    shell("run", "program.py:hold", "1", "--key", "k", "--label", "team=a")
    drawn = re.sub(r" +[\d.]+ (ms|s)\b|\d\d:\d\d:\d\d|[0-9a-f-]{36}", "~", shell("show", "--key", "k").out)
    assert drawn == (
        "hold  ~\n"
        "completed in~ · 2 processes · 6 entries\n"
        "  key     k\n"
        "  labels  team=a\n"
        '  input   {"number":1}\n'
        "  result  3\n"
        "\n"
        "╭ process 1  ~\n"
        "│ ✓ add#1        repeat~\n"
        "╳ lost: killed, crashed or stopped here (last entry after~)\n"
        "\n"
        "╭ process 2  ~~ later\n"
        "│ ↻ 1 step replayed from the journal, not performed again\n"
        "│ ✓ pass_gate#1  repeat~\n"
        "│ ✓ add#2        repeat~\n"
        "╰ ■ completed\n"
    )


def test_a_dead_process_is_shown_before_anybody_took_over(shell: Shell) -> None:
    """Right after a kill, the drawing says that nobody is at work and what happens next."""
    killed_and_resumed(shell)
    ran = shell("show", "--key", "k")
    assert "running" in ran.out
    assert "╳ lost: killed, crashed or stopped here" in ran.out
    assert ran.out.endswith("It goes on from here when its program runs again.\n")


def test_a_process_at_work_is_shown_at_work(shell: Shell) -> None:
    """A live run is not taken for a lost one."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--key", "k")
    started.wait_for("at the gate")
    assert shell("show", "--key", "k").out.endswith("╰ … at work\n")
    started.end(signal.SIGKILL)


def test_a_doubt_is_drawn_with_the_command_that_ends_it(shell: Shell) -> None:
    """The way out of a doubt stands under the drawing, ready to copy."""
    shell("run", "program.py:pay", "5", "--key", "p")
    ran = shell("show", "--key", "p")
    assert re.search(r"│ \? take#1  once .* in doubt: OSError: the line went dead", ran.out)
    assert ran.out.count("│ ") == 2, "an intent and what came of it are one line"
    resolve = ran.out.splitlines()[-2].strip()
    assert shell.copied(resolve, JSON='"R-1"').status == 0
    shell("run", "program.py:pay", "5", "--key", "p")
    drawn = shell("show", "--key", "p").out
    assert re.search(r"│ ✓ take#1  once .* says grace: it did happen", drawn)
    assert "2 processes" in drawn


def test_json_holds_everything_that_is_drawn(shell: Shell) -> None:
    """A program gets the processes and what each did as data."""
    killed_and_resumed(shell)
    shell("run", "program.py:hold", "1", "--key", "k", "--label", "team=a")
    shown = shell("show", "--key", "k", "--json").value
    assert (shown["status"], shown["result"], shown["doubted"]) == ("completed", 3, [])
    first, second = shown["processes"]
    assert (first["end"], first["replayed"], first["worker"]) == ("lost", 0, None)
    assert (second["end"], second["replayed"]) == ("finished", 1)
    acts = [(act["step"], act["effect"], act["outcome"], act["seq"]) for act in second["acts"]]
    assert acts == [
        ("0/pass_gate#1", "repeat", "completed", 4),
        ("0/add#2", "repeat", "completed", 5),
        (None, None, "completed", 6),
    ]


def test_a_run_is_found_by_the_beginning_of_its_id(shell: Shell) -> None:
    """Eight characters are enough where only one run begins so."""
    run = shell("run", "program.py:count", "1", "--json").value["id"]
    for text in (run, run[:8], run[:13], run[:14], run.upper()[:20]):
        assert run in shell("show", text).out


def test_a_beginning_that_several_runs_share_is_refused_with_all_of_them(shell: Shell) -> None:
    """No run is picked by chance."""
    runs = [shell("run", "program.py:count", str(n), "--json").value["id"] for n in range(2)]
    ran = shell("show", runs[0][:8])
    assert ran.status == 2
    assert f"2 runs begin with {runs[0][:8]}" in ran.err
    assert all(run in ran.err for run in runs)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["00000000-0000-7000-8000-000000000000"], 3),
        (["00000000"], 3),
        (["--key", "nobody"], 3),
        (["short"], 3),
        (["not-a-run-id"], 3),
        ([""], 2),
        ([], 2),
        (["00000000", "--key", "k"], 2),
    ],
)
def test_a_run_that_is_not_there_is_not_found(shell: Shell, words: list[str], status: int) -> None:
    """What names no run is told apart from what cannot name one."""
    shell("run", "program.py:count", "1")
    assert shell("show", *words).status == status
    assert shell("show", *words, "--json").error["code"] == {3: "not_found"}.get(status) or status == 2


def test_a_long_run_is_shortened_unless_all_is_asked_for(shell: Shell) -> None:
    """A run of a hundred steps fits a screen, and nothing is hidden from who asks."""
    shell("run", "program.py:count", "0", "100", "--key", "k")
    short, whole = shell("show", "--key", "k").out, shell("show", "--key", "k", "--all").out
    assert "more (--all shows them)" in short
    assert len(short.splitlines()) < 60
    assert "✓ add#100" in short
    assert whole.count("✓ add#") == 100


def test_text_of_a_run_cannot_drive_the_terminal(shell: Shell) -> None:
    """An escape sequence in a journal is shown, not obeyed."""
    run = shell("run", "program.py:fail", "\x1b[2J\x07\u202eevil\nline", "--json").error["run"]
    for words in (["show", run], ["ls"], ["tail", run]):
        out = shell(*words).out
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "\u202e" not in out
        assert "evil" in out


def test_a_failure_and_a_retry_are_told(shell: Shell) -> None:
    """A failed attempt stays visible after a later one worked."""
    (shell.folder / "again.py").write_text(
        "import holdfast as hf\n"
        "def flaky(step: hf.Step[None]) -> int:\n"
        "    if step.attempt < 2: raise OSError('busy')\n"
        "    return step.attempt\n"
        "@hf.durable\n"
        "async def f(ctx: hf.Context) -> int:\n"
        "    return await ctx.step(flaky, retry=hf.Retry(attempts=3, first=0.01))\n"
    )
    shell("run", "again.py", "--key", "k")
    drawn = shell("show", "--key", "k").out
    assert re.search(r"✗ flaky#1  repeat .* OSError: busy  \(again.py:3\) \(attempt 1, again in", drawn)
    assert re.search(r"✓ flaky#1  repeat .* attempt 2", drawn)


LISTENING = """
import holdfast as hf

@hf.durable
async def listen(ctx: hf.Context) -> int:
    return await ctx.receive(hf.Signal("receipts-uploaded", int))
"""


def test_a_signal_that_nobody_has_received_is_shown(shell: Shell) -> None:
    """A misspelt name is seen beside the right one, until somebody takes it."""
    (shell.folder / "listening.py").write_text(LISTENING)
    shell("run", "listening.py", "--key", "k", "--detach")
    shell("signal", "k", "receipts-uploded", "1", "--by", "ada")
    shell("signal", "k", "receipts-uploded", "2")
    shell("signal", "k", "receipts-uploaded", "3")
    drawn = shell("show", "k").out
    assert "\n! 2 signals 'receipts-uploded' in the inbox, which nobody has received yet\n" in drawn
    assert "\n! 1 signal 'receipts-uploaded' in the inbox, which nobody has received yet\n" in drawn
    sent = shell("show", "k", "--json").value["signals"]
    assert [(each["name"], each["value"], each["by"]) for each in sent] == [
        ("receipts-uploded", 1, "ada"), ("receipts-uploded", 2, "grace"), ("receipts-uploaded", 3, "grace"),
    ]  # fmt: skip
    assert shell("run", "listening.py", "--key", "k").value == 3
    drawn = shell("show", "k").out
    assert "'receipts-uploaded' in the inbox" not in drawn
    assert "! 2 signals 'receipts-uploded' in the inbox, which nobody received\n" in drawn


COLUMNS = """
import holdfast as hf

async def fetch(number: int) -> int:
    return number

async def twice(ctx: hf.Context, number: int) -> int:
    return await ctx.step(fetch, await ctx.step(fetch, number))

@hf.durable
async def trip(ctx: hf.Context) -> None:
    await ctx.step(fetch, 1)
    await ctx.map(fetch, [1])
    await ctx.gather(twice(ctx, 1), twice(ctx, 2))
    await ctx.sleep(0.001)
    await ctx.receive(hf.Signal("go", int), timeout=0.001)
    await ctx.ask("Go?", expires=0.001)
"""


def test_steps_waits_and_questions_share_their_columns(shell: Shell) -> None:
    """A time stands in the column of times whatever it is of, and no line ends in blanks."""
    (shell.folder / "columns.py").write_text(COLUMNS)
    assert shell("run", "columns.py:trip", "--key", "k").status == 0
    drawn = re.sub(r" +[\d.]+ m?s\b", lambda found: "T".rjust(len(found[0])), shell("show", "k").out)
    lines = [line for line in drawn.splitlines() if line.startswith("│")]
    assert sorted(lines[2:6]) == [
        "│ ✓ gather#1.1/fetch#1  repeat",
        "│ ✓ gather#1.1/fetch#2  repeat        T",
        "│ ✓ gather#1.2/fetch#1  repeat",
        "│ ✓ gather#1.2/fetch#2  repeat        T",
    ]
    assert lines[:2] + lines[6:] == [
        "│ ✓ fetch#1             repeat        T",
        "│ ✓ map#1.1/fetch#1     repeat",
        "│ ✓ sleep#1                           T",
        "│ ✓ receive#1                         T  nothing came in time",
        "│ ? ask#1                                asks: Go?",
        "│ ✗ ask#1                             T  nobody answered in time",
    ]


def test_what_a_run_was_delayed_by_is_no_time_of_its_first_step() -> None:
    """The journal has when it was due: before that nobody worked."""
    watch = Stopwatch()
    started = ev.RunStarted(
        name="n", tenant="", digest="", seed="", root="", at=1_000_000, due_at=61_000_000
    )  # fmt: skip
    assert watch.took(started) is None
    assert watch.took(ev.StepCompleted(step="0/add#1", digest="", at=61_500_000)) == 500_000
