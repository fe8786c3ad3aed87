"""A stand-in for a coding program, as a harness: what it shall do, and what was done with it."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

from holdfast.harness import ClaudeCode, Codex, Coding

Kind = Literal["claude", "codex"]
KINDS: tuple[Kind, ...] = ("claude", "codex")
_PROGRAM = str(Path(__file__).with_name("standin.py"))
AGAIN = "You were stopped before you had answered"
"""How a program is told that it has been asked before."""


class StandIn:
    """One folder with a stand-in's plan, its sessions, its calls, and the directory that it works in."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder, self.kind = folder, kind
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)

    def plan(self, *starts: list[list[Any]]) -> None:
        """Say what is done at each start; at all later ones a whole turn is taken, which says what it was told."""
        (self.folder / "plan.json").write_text(json.dumps(starts))

    def harness(self, **options: Any) -> Coding:
        """Return it as a harness."""
        given = {
            "program": [sys.executable, "-I", "-S", _PROGRAM, self.kind],
            "env": {"STANDIN": str(self.folder)},
            "state": self.folder / "state",
            "grace_seconds": 0.5,
            "rest_seconds": 0.05,
            **options,
        }
        return ClaudeCode(**given) if self.kind == "claude" else Codex(**given)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What it was started with, in order."""
        return [note for note in self._notes if "words" in note]

    @property
    def ended(self) -> int:
        """How many turns it took to their end."""
        return sum("ended" in note for note in self._notes)

    @property
    def _notes(self) -> list[dict[str, Any]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def sessions(self) -> list[str]:
        """Which sessions there are."""
        return sorted(path.stem.removeprefix("session-") for path in self.folder.glob("session-*.json"))

    def said(self, session: str) -> list[str]:
        """Return what was said in a session."""
        said: list[str] = json.loads((self.folder / f"session-{session}.json").read_text())
        return said

    def resumed(self, call: dict[str, Any]) -> str | None:
        """Return which session a start resumed."""
        words = call["words"]
        mark = "--resume" if self.kind == "claude" else "resume"
        return str(words[words.index(mark) + 1]) if mark in words else None

    @property
    def hangs(self) -> bool:
        """True once it came to where it hangs."""
        return (self.folder / "hangs").exists()


def is_alive(process: int) -> bool:
    """Say whether there is such a process."""
    return os.path.exists(f"/proc/{process}")
