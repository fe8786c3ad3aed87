"""Stands in for a coding program: speaks its JSON, keeps its sessions, and does what a plan says of its n-th start.

Executed as `standin.py claude …` or `standin.py codex …`, by a bare interpreter. The folder that `STANDIN` names has
`plan.json`, a list of what is done at each start; `calls.jsonl`, a line for each start; and the sessions.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

_HOME = Path(os.environ["STANDIN"]) if "STANDIN" in os.environ else Path()
_TOKENS = {"input": 20, "output": 2}


def say(event: dict[str, Any]) -> None:
    """Write an event."""
    os.write(1, json.dumps(event).encode() + b"\n")


def note(**what: Any) -> int:
    """Note something about this start; return how many were noted before it."""
    path = _HOME / "calls.jsonl"
    before = len(path.read_text().splitlines()) if path.exists() else 0
    with path.open("a") as file:
        file.write(json.dumps(what) + "\n")
    return before


class Session:
    """A session on disk: how often it was asked, and what was said to it."""

    def __init__(self, name: str) -> None:
        self.path = _HOME / f"session-{name}.json"
        self.name = name
        self.said: list[str] = json.loads(self.path.read_text() or "[]") if self.path.exists() else []

    def keep(self, *more: str) -> None:
        """Write down what was said."""
        self.said += more
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.said))
        part.replace(self.path)


class Claude:
    """Speaks as Claude Code does."""

    def __init__(self, words: list[str]) -> None:
        resumes = "--resume" in words
        name = words[words.index("--resume" if resumes else "--session-id") + 1]
        self.session, self.texts = Session(name), 0
        if resumes and not self.session.said:
            why = f"No conversation found with session ID: {name}"
            say({"type": "result", "subtype": "error_during_execution", "is_error": True, "session_id": name,
                 "num_turns": 0, "total_cost_usd": 0, "usage": {}, "modelUsage": {}, "errors": [why]})  # fmt: skip
            sys.exit(why)
        if not resumes and self.session.path.exists():
            sys.exit(f"Error: Session ID {name} is already in use.")

    def named(self) -> None:
        say({"type": "system", "subtype": "init", "session_id": self.session.name, "cwd": os.getcwd()})

    def text(self, text: str) -> None:
        self.texts += 1
        id = f"msg-{os.getpid()}-{self.texts}"
        usage = {"input_tokens": _TOKENS["input"], "cache_read_input_tokens": 0, "output_tokens": 1}
        part = {"type": "stream_event", "parent_tool_use_id": None, "api_message_id": id}
        say({**part, "event": {"type": "message_start", "message": {"id": id, "usage": usage}}})
        delta = {"type": "text_delta", "text": text}
        say({**part, "event": {"type": "content_block_delta", "index": 0, "delta": delta}})
        content = [{"type": "text", "text": text}]
        say({"type": "assistant", "parent_tool_use_id": None, "message": {"model": "m", "id": id, "content": content}})
        out = {"output_tokens": _TOKENS["output"]}
        say({**part, "event": {"type": "message_delta", "delta": {}, "usage": out}})

    def tool(self, command: str) -> None:
        block = {"type": "tool_use", "id": f"tool-{self.texts}", "name": "Bash", "input": {"command": command}}
        part = {"type": "stream_event", "parent_tool_use_id": None}
        say({**part, "event": {"type": "content_block_start", "index": 0, "content_block": {**block, "input": {}}}})

    def end(self, text: str, **more: Any) -> None:
        own = {
            "cache_read_input_tokens": 0,
            "input_tokens": self.texts * _TOKENS["input"],
            "output_tokens": self.texts * _TOKENS["output"],
        }
        count = {"inputTokens": own["input_tokens"], "outputTokens": own["output_tokens"]}
        say({"type": "result", "subtype": "success", "is_error": False, "session_id": self.session.name,
             "result": text, "usage": own, "modelUsage": {"m": count}, "total_cost_usd": self.texts * 0.001,
             **more})  # fmt: skip

    def fail(self, status: int) -> None:
        why = f"API Error: {status}"
        self.end(why, is_error=True, api_error_status=status, terminal_reason="api_error")


class Codex:
    """Speaks as Codex does."""

    def __init__(self, words: list[str]) -> None:
        resumes = words[1] == "resume"
        self.session = Session(words[2] if resumes else str(uuid.uuid4()))
        self.items = 0
        if resumes and not self.session.said:
            sys.exit(f"Error: thread/resume failed: no rollout found for thread id {self.session.name} (code -32600)")

    def named(self) -> None:
        say({"type": "thread.started", "thread_id": self.session.name})
        say({"type": "turn.started"})

    def _item(self, kind: str, **item: Any) -> None:
        say({"type": kind, "item": {"id": f"item_{self.items}", **item}})

    def text(self, text: str) -> None:
        self.items += 1
        self._item("item.completed", type="agent_message", text=text)

    def tool(self, command: str) -> None:
        self.items += 1
        self._item("item.started", type="command_execution", command=command, status="in_progress")

    def end(self, text: str) -> None:
        # Codex counts through the whole session.
        texts = sum(one.startswith("said: ") for one in self.session.said)
        usage = {"input_tokens": texts * _TOKENS["input"], "cached_input_tokens": 0,
                 "output_tokens": texts * _TOKENS["output"]}  # fmt: skip
        say({"type": "turn.completed", "usage": usage})

    def fail(self, status: int) -> None:
        message = f"unexpected status {status}: it says {status}"
        say({"type": "error", "message": message})
        say({"type": "turn.failed", "error": {"message": message}})


def act(spoken: Claude | Codex, prompt: str, plan: list[list[Any]]) -> None:
    """Do what the plan says, in order."""
    text = ""
    for word, *more in plan:
        match word:
            case "named":
                spoken.named()
            case "keep":
                spoken.session.keep(f"asked: {prompt}")
            case "file":
                spoken.session.path.touch()  # a session's file without anything in it
            case "text":
                text = str(more[0])
                spoken.session.keep(f"said: {text}")
                spoken.text(text)
            case "echo":
                text = f"you said: {prompt}"
                spoken.session.keep(f"said: {text}")
                spoken.text(text)
            case "tool":
                spoken.tool(more[0])
                # In a session of its own, as the real ones do.
                subprocess.run(["/bin/sh", "-c", more[0]], start_new_session=True, check=False)
            case "hang":
                (_HOME / "hangs").touch()
                time.sleep(600)
            case "mortal":
                # Waits until it is told to stop, and goes on nevertheless.
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                (_HOME / "hangs").touch()
                signal.sigwait([signal.SIGTERM])
            case "half":
                os.write(1, b'{"type":"result","subtype":"succ')
            case "wide":
                os.write(1, b"x" * int(more[0]))
            case "noise":
                os.write(1, b"this is no JSON\n[1]\n{}\n" + json.dumps({"type": "brand.new"}).encode() + b"\n")
            case "complain":
                os.write(2, str(more[0]).encode() + b"\n")
            case "end":
                spoken.end(text, **(more[0] if more else {}))
                note(ended=os.getpid())
            case "fail":
                spoken.fail(more[0])
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                sys.exit(more[0])


def recite(kind: str, spoken: Claude | Codex, prompt: str) -> None:
    """Take a turn that says the line of its number in the session, as a bench has it in hand."""
    lines = json.loads((_HOME / "lines.json").read_text())
    session = spoken.session
    if kind == "codex":
        _cut(0)
    spoken.named()
    session.keep(f"asked: {prompt}")
    _cut(0 if kind == "claude" else 1)
    asked = sum(one.startswith("asked: ") and "You were stopped before" not in one for one in session.said)
    while (_HOME / "held").exists():
        time.sleep(0.02)
    line = lines[min(asked, len(lines)) - 1]
    session.keep(f"said: {line}")
    spoken.text(line)
    _cut(1 if kind == "claude" else 2)
    capped = {
        "subtype": "error_max_turns",
        "is_error": True,
        "result": None,
        "errors": ["Reached maximum number of turns"],
    }
    spoken.end(line, **(capped if (_HOME / "capped").exists() else {}))


def _cut(place: int) -> None:
    """Break off here, once, where somebody wants it."""
    path = _HOME / "cut.json"
    wanted = json.loads(path.read_text()) if path.exists() else {"after": None}
    if wanted["after"] == place:
        path.unlink()
        if wanted["clean"]:
            sys.exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Be the program that the first word names."""
    kind, *words = sys.argv[1:]
    other = Path(".alone")
    alone = not (other.exists() and Path(f"/proc/{other.read_text()}").exists())
    other.write_text(str(os.getpid()))
    prompt = sys.stdin.read()
    plans = json.loads((_HOME / "plan.json").read_text()) if (_HOME / "plan.json").exists() else []
    starts = (
        [line for line in (_HOME / "calls.jsonl").read_text().splitlines() if "words" in line]
        if (_HOME / "calls.jsonl").exists()
        else []
    )
    note(words=words, prompt=prompt, pid=os.getpid(), alone=alone)
    plan = plans[len(starts)] if len(starts) < len(plans) else [["named"], ["keep"], ["echo"], ["end"]]
    spoken = Claude(words) if kind == "claude" else Codex(words)
    if (_HOME / "lines.json").exists():
        recite(kind, spoken, prompt)
    else:
        act(spoken, prompt, plan)
    other.unlink()


if __name__ == "__main__":
    main()
