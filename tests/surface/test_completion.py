"""The shell completes what the store holds, and leaves files to itself."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.surface.command import SECONDS, Shell

_ASK = """
eval "$(_HOLDFAST_COMPLETE=bash_source holdfast)"
compopt() { echo "$COMP_LINE => the shell"; }
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE} COMPREPLY=()
    _holdfast_completion holdfast
    for reply in "${COMPREPLY[@]}"; do echo "$COMP_LINE => $reply"; done
done
"""


def completed(shell: Shell, *lines: str) -> Mapping[str, Sequence[str]]:
    """Return what a bash that was set up as the page says completes each line with."""
    command = shell.folder / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m holdfast "$@"\n')
    command.chmod(0o700)
    ran = subprocess.run(
        ["bash", "-c", _ASK], input="".join(f"{line}\n" for line in lines), capture_output=True, text=True,
        cwd=shell.folder, env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"},
        timeout=len(lines) * SECONDS, check=True,
    )  # fmt: skip
    answers: dict[str, list[str]] = {line: [] for line in lines}
    for told in ran.stdout.splitlines():
        line, _, reply = told.partition(" => ")
        answers[line].append(reply)
    return answers


def test_bash_completes_commands_runs_keys_and_names_and_leaves_files_to_itself(shell: Shell) -> None:
    """Also behind an address, whose colons end a word for bash; and only runs that the command can do something to."""
    shell("run", "program.py:count", "1", "--key", "ended")
    shell("run", "program.py:pay", "5", "--key", "open")
    ended, waits = (shell("show", "--key", key, "--json").value["id"] for key in ("ended", "open"))
    answers = completed(
        shell, "holdfast sho", "holdfast show --store sqlite:///holdfast.db 0", "holdfast cancel ", "holdfast delete ",
        "holdfast show --key o", "holdfast ls --name c", "holdfast run pro", "holdfast ls --sta",
    )  # fmt: skip
    assert list(answers.values()) == [
        ["show"], [waits, ended], [waits], [ended], ["open"], ["count"], ["the shell"], ["--status"],
    ]  # fmt: skip
