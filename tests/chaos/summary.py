"""What a campaign leaves behind: a page for people and the same for machines."""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

import holdfast
from tests.chaos.campaign import Result
from tests.chaos.kills import scratch

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "results"

Part = dict[str, Any]
"""One campaign: its numbers and failures, and the commit, command and machine that they were measured on."""

_MEANINGS: Final = {
    "kills": (
        "Real SIGKILLs of a program with every verb, one to six runs at once, before and after its writes, at its file "
        "calls and inside its effects. A kill `during_recovery` struck a process that was taking up what an earlier "
        "kill had left. Judged by a ledger outside of the program: result and journal of an unbroken run, `once` "
        "effects once (a request acts two seconds after its sender died), doubts ended by their policy, the same "
        "idempotency key at every attempt, transactions exactly once, nothing acknowledged taken back, no committed "
        "work done again, and no chunk, worker or lock left behind."
    ),
    "kills_postgres": (
        "The same program with its store on PostgreSQL, killed before and after its writes and inside its effects, and "
        "judged in the same way; what a dead process had asked for may still be done by the server."
    ),
    "every_verb": (
        "Real SIGKILLs of a process that serves five durable functions which between them use every verb (steps of "
        "each effect, retries, timeouts, limits, branches, children, signals, questions, pauses, cancels, "
        "generations), one to five of them at once, at random points and again while it recovers, half of them on "
        "each database. Every journal must be that of an unbroken life but for what a death adds by policy, with one "
        "ending; `once` effects happen once, keys are those of their steps, transactions are exact, no child is there "
        "twice, no signal, answer or cancel is lost, no due time slides, nothing acknowledged is taken back, and "
        "`verify` finds nothing."
    ),
    "talks": (
        "A conversation of ten turns with parallel tools of each effect, an approval with edited arguments, one "
        "refused, a word that steers a turn while a tool runs, a sub-agent, mistaken calls and a queued turn, over a "
        "provider on a real socket. Its worker dies at each of the conversation's points in turn (before and after "
        "every write, inside the tools, between the pieces of a stream), then two or three times by chance, half of "
        "it on each database; whoever holds the conversation lives. Every message is that of an unbroken one, but for "
        "results of `once` tools under way at a death, which are told as unknown; a `once` tool was called at most "
        "once, a keyed one under one key; what a model is asked again is the same to the byte, with every call "
        "answered; onlookers who lose the line again and again see every entry once, and what was shown of a message "
        "is how it begins. `entries_died_at` counts the entries that were the last of their run at some death: "
        "one that is always committed together with the next never is."
    ),
    "harnesses": (
        "A conversation of three turns with tools, which a harness takes: what it creates lives in a provider "
        "outside of the process. Its process dies at each point of it in turn, then two or three times by chance, "
        "half of it on each database, with a harness that cannot tell whether a creation whose id was lost was made "
        "(`doubting`), one that is sent again under its key (`keyed`) and one that can look it up (`finding`). "
        "Every message is that of an unbroken conversation; each exchange whose id was on disk was created once, "
        "and every other creation is a doubt that is shown; `keyed` and `finding` create each once, and `keyed` doubts "
        "nothing; no chain forks."
    ),
    "loops": (
        "A loop of a user's own with a checkpoint: it saves its messages before and after each effect, edits the first "
        "at every turn and sums some up half-way. Its process dies at each point in turn (around every write, "
        "inside the effects), then two or three times by chance, half of it on each database, and asks "
        "`interrupted()` when it begins again. Every life finds what was acknowledged last, or the save behind it; "
        "each effect happens once, with what was under way told as in doubt; there is one life of the checkpoint, "
        "completed and sound, with no worker left, and no message is stored again. Then four processes at a time want "
        "one checkpoint and die with it now and then: each word that was acknowledged is there, in order, and no two "
        "have it at once."
    ),
    "commits": (
        "The same program on PostgreSQL over a line that is cut at one of its writes: before it arrives, while it is "
        "done, after it is done and before it is answered, with all but its end done, or so that it lands late. In "
        "turn at every write of one run, then by chance at those of up to four. With `died_too` the process was killed "
        "at that moment, so that its successor meets what lands. Judged in the same way, and without a death no work "
        "may be done twice and nothing come into doubt."
    ),
    "power": (
        "Different disks that a power loss could have left (unsynced writes dropped, kept, torn at sectors, any "
        "prefix; names strict and ordered), each taken up again and judged in the same way by all that the program "
        "had acknowledged by then."
    ),
    "flips": "Bytes of a store changed under it: damage is named, set aside, and spoils no other run.",
    "zombies": (
        "Two workers on one store, in processes of their own: whoever drives a run is stopped before a commit, in a "
        "`once` effect, inside a pulse or at any moment, by SIGSTOP or by the freezer, until the other has its run "
        "(`overtaken`: it was not over yet), and then woken, half before the other has written anything. Nothing "
        "stale may be written, no effect happen twice, the run end as its policies say, and whoever woke serve a new "
        "run within two seconds (`slowest_return_ms`)."
    ),
    "restarts": (
        "PostgreSQL crashed (`immediate`) and started again under 24 runs with plain and `once` steps and posts, and "
        "three workers. Judged by a ledger outside: no hole, no repeat, no effect twice, nothing acknowledged lost, "
        "and every caller told the true outcome (`asked_again`: it was first told that the store is away)."
    ),
    "fleet": (
        "Four workers, of which one is killed every second and replaced, every other one between a `once` effect and "
        "its record: all runs end, and by a ledger outside nothing is done twice."
    ),
    "posts": (
        "A run that parks in one process while another posts to it (`posted_first`: the park was refused; "
        "`parked_first`: the post woke it), and two processes whose batches post to each other's runs (`crossing`): no "
        "post is lost or taken twice, and no caller is shown a deadlock."
    ),
    "poison": (
        "Healthy runs, 200 at a time, beside runs that exit their process, use up its memory or crash it at an "
        "import, under a loop that starts `holdfast worker`, with 64 runs at once, whenever it died. Every healthy run "
        "ends and none is quarantined; every other one is, with its last step in the reason, and completes by a "
        "person's retry when its cause is gone."
    ),
    "watchers": (
        "50 clients, each watching a run that tells words and leaving after one to sixty messages, while the server or "
        "one of two workers is killed about every second, half of it on each database. 49 read lines over HTTP; one is "
        "Chromium's own EventSource, which connects again by itself when the server dies (`browser_by_itself`) and is "
        "also closed at random and made anew (`browser_left`). Each takes up where it left (or was `cut` off by a "
        "death) by the last id it has: no entry is lost or comes twice, no word of a preview is missing or comes "
        "twice, every preview is the beginning of its entry (`resets`: its owner had died meanwhile), and all watchers "
        "of a run see the same bytes. The same judge must catch three broken servers that the browser alone watches: "
        "one that sends on what it hears, one that gives words no id, one that believes the address before the header."
    ),
    "races": (
        "Posts from one process that race what a run in another does, so many of each kind on each database: a signal "
        "a park or an end, a cancel a park, an end or another cancel, an answer its question's expiry, a resume a "
        "pause. The moment of each post is moved until either comes first about as often (`first`: the post did; "
        "`late`: the run had rested or ended). None is lost, none taken twice, every run has one ending, and what each "
        "sender was told is true."
    ),
    "conversations": (
        "Conversations that two processes send to and two answer, of which one is killed every second or so and "
        "started again, on each database: messages are queued, rejected, told to the turn under way or interrupt it, "
        "and sent again by whoever takes the place of a dead sender. By a lock and a ledger outside never two turns of "
        "a conversation act at once and no effect happens twice; every accepted message is one turn, numbered without "
        "a hole, and every turn ends."
    ),
    "rates": (
        "Runs of an agent, left behind while their provider was away and all due at once, taken up by one process "
        "against a real HTTP server on the loopback that allows 20 requests a second and says so in its headers. All "
        "end, none fails, and behind the first second no more than 24 requests arrive in any second "
        "(`most_in_a_second`; `refused_late`: refused though the rate was known). A twin that ignores what it learnt "
        "must be caught."
    ),
    "simulation": (
        "Seeded interleavings of up to three workers in one process, on a store in memory that takes its time and "
        "loses answers: generated programs of up to 20 verbs, workers killed between any two of their callbacks or "
        "stopped and woken after their leases were lost, outsiders who signal, answer, cancel and pause at any moment, "
        "time that jumps. Checked against a model of the program: results, one ending, effects by policy, journals, no "
        "post lost or taken twice, no writer without a lease, nothing owned by the dead for longer than a lease and "
        "two seconds. A failing seed replays exactly."
    ),
    "programs": (
        "Generated programs of up to 20 verbs (steps of each effect, retries, sleeps, signals, questions, children, "
        "maps, branches, generations, limits), forty at once on three worker processes, of which one is killed every "
        "two seconds and replaced, every other one around an effect, while outsiders signal, answer, cancel, pause and "
        "resume. By a ledger outside and a model that reads the program as data: every run's ending and result, "
        "effects by policy, nothing recorded done again, one ending, no signal lost or taken twice, and what every "
        "outsider was told is true."
    ),
    "faults": (
        "Agents whose provider, a real server on a socket that speaks OpenAI's or Anthropic's format, fails once: cut "
        "after each of 50 tokens by FIN, RST or silence, malformed JSON, broken UTF-8, an error within the stream, a "
        "missing or doubled terminator, half a call, 429s, 503, 529, and 500 after the work; half of them in memory, "
        "half on SQLite. Checked: the final message, the journal and what a watcher shows are one and whole, every "
        "preview is a beginning of its message, no half call runs, every attempt that the provider counted is in the "
        "journal, with what it took where that was told. Each check has a broken twin that it catches."
    ),
    "stateful": (
        "Turns of an agent whose provider keeps what it generates, a real server on a socket that speaks Google's "
        "Interactions or OpenAI's Responses and is accepted by their SDKs. The first generation fails: cut after each "
        "of its events by FIN, RST or silence, malformed JSON, broken UTF-8, an error within the stream, a missing or "
        "doubled terminator, half a call, 429s, 503 and 529, and 500 after the creation; meanwhile it ends, goes on "
        "until it is heard again, or is cut again then; half of them in memory, half on SQLite. Then another turn. "
        "By what the provider made and by the journal: where the id had come, each generation was made and charged "
        "once; where it had not, a doubt is shown, and what was set aside is charged beside the next (`made`, "
        "`doubts`); what was refused was not made and costs nothing; the chain never forks; messages, calls, tools "
        "and previews are those of an unbroken turn (`looks`: requests for what was made, of which `behind` asked for "
        "the events behind the last). Each check has a broken twin that it catches."
    ),
    "stateful_kills": (
        "A conversation of two turns with tools and an approval, which Google's Interactions or OpenAI's Responses "
        "keep. Its process is killed at each of its points in turn (before and after every write, around every "
        "request, behind every event), then two or three times by chance, a quarter of it with each provider on each "
        "database, while the provider thinks on. By what the provider made and by the journal: transcript, results "
        "and charges are those of an unbroken conversation; without a doubt each generation was made once; a doubt is "
        "there only where the id was not on disk, and is charged in full whether or not the generation was made "
        "(`made_and_lost`); nothing goes on from what is not in the chain; `verify` finds nothing."
    ),
    "disks": (
        "Real ext4 file systems of a few MB, with blocks of 1 and 4 kB, that are full or read-only before a program "
        "opens its store (a new one, a closed one, one of a killed process), fill up before one of its steps, have "
        "room again while it lives, or become read-only under it by an error of the file system. A trial was `struck` "
        "when the program noticed. Checked: an error of Holdfast's that names the file and what is wrong with the "
        "disk, reading commands that read or say so, the run's end when the fault is gone (by itself where the "
        "program lives), nothing acknowledged taken back, `once` effects once, and `holdfast verify`."
    ),
    "controls": (
        "Deliberately broken twins of Holdfast, each of which the same checks must catch at every play, and the same "
        "plays with Holdfast itself, which must not be accused."
    ),
}


def facts(command: str) -> dict[str, Any]:
    """Return what the numbers were measured on."""
    with scratch() as folder:
        file_system = _file_system(folder)
    return {
        "commit": _git("rev-parse", "HEAD"),
        "src_clean": _is_ours() and not _git("status", "--porcelain", "--", "src"),
        "tests_clean": not _git("status", "--porcelain", "--", "tests/chaos"),
        "command": command,
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
            "file_system": file_system,
        },
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _is_ours() -> bool:
    """Say whether the Holdfast that ran is the one of this checkout."""
    return Path(holdfast.__file__).resolve().is_relative_to(ROOT / "src")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(folder: Path) -> str:
    """Return the kind of file system that a folder lies on."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    around = [(len(place), kind) for _, place, kind, *_ in mounts if folder.is_relative_to(place)]
    return max(around)[1]


def part(known: Mapping[str, Any], result: Result) -> Part:
    """Return a campaign's result with all that it was measured on."""
    return {**msgspec.to_builtins(result), **known}


def keep(parts: Mapping[str, Part]) -> None:
    """Write these campaigns into the results; the others there stay as they were measured."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "chaos.json"
    kept: dict[str, Part] = msgspec.json.decode(file.read_bytes())["parts"] if file.exists() else {}
    kept = {name: {**kept, **parts}[name] for name in _MEANINGS if name in kept or name in parts}
    file.write_bytes(as_json(kept))
    (RESULTS / "chaos.md").write_text(as_page(kept), "utf-8")


def as_json(parts: Mapping[str, Part]) -> bytes:
    """Return campaigns as one JSON object."""
    return msgspec.json.format(msgspec.json.encode({"parts": parts}), indent=2) + b"\n"


def as_page(parts: Mapping[str, Part]) -> str:
    """Return campaigns as a page."""
    lines = ["# Chaos", "", "| campaign | failures | seconds | counts |", "|---|---:|---:|---|"]
    for name, part in parts.items():
        counts = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in part["counts"].items())
        lines.append(f"| {name} | {len(part['failures'])} | {part['seconds']:,.0f} | {counts} |")
    for name, part in parts.items():
        clean = "as committed" if part["src_clean"] else "CHANGED since that commit"
        machine = ", ".join(f"{fact.replace('_', ' ')} {value}" for fact, value in part["machine"].items())
        lines += ["", f"## {name}", "", _MEANINGS[name], ""]
        lines.append(
            f"Commit `{part['commit']}`, src/ {clean}; `{part['command']}`, seed {part['seed']}; {part['date']}."
        )
        lines.append(f"On {machine}.")
        lines += [f"\n```\n{failure[:3000]}\n```" for failure in part["failures"]]
    return "\n".join(lines) + "\n"
