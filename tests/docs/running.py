"""Running what a page shows: its Python as a program, its commands in a shell, what they print compared."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.docs.pages import Page

SECONDS = 60
_EXITS = re.compile(r"\s+# exits with (\d+)$")


def environment() -> dict[str, str]:
    """Return an environment in which `python` and `holdfast` are the ones under test, and no store is named."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    # Settings of this machine must not change what a reader would see.
    kept |= {"PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}", "NO_COLOR": "1", "COLUMNS": "120"}
    return kept


def script_of(page: Page) -> str | None:
    """Return a page's Python as one program whose line numbers are the page's, or None if it has none."""
    blocks = [block for block in page.blocks if block.language == "python" and block.file is None]
    if not blocks:
        return None
    lines = [""] * (page.text.count("\n") + 1)
    for block in blocks:
        for place, line in enumerate(block.text.splitlines(), start=block.line - 1):
            lines[place] = line
    return "\n".join(lines) + "\n"


def run_python(program: Path) -> str:
    """Run a program in its folder and return what it printed; fail with its words if it fails."""
    done = subprocess.run(
        [sys.executable, "-W", "error", program.name],
        cwd=program.parent, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(text: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each command of a console block with the lines that the page says it prints."""
    command, printed = "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        else:
            printed.append(line)
    if command:
        yield command, printed


def newest_run(folder: Path) -> str:
    """Return the id of the run that was started last in the store of `folder`."""
    listing = [str(Path(sys.executable).with_name("holdfast")), "ls", "--limit", "1", "--json"]
    done = subprocess.run(
        listing, cwd=folder, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=True
    )
    run = json.loads(done.stdout)["id"]
    assert isinstance(run, str)
    return run


def run_command(command: str, printed: Sequence[str], folder: Path) -> None:
    """Run one command and compare.

    `…` in a printed line stands for anything, `# exits with N` for another status than 0, and RUN for the newest run.
    """
    exits, typed = _EXITS.search(command), _EXITS.sub("", command)
    if re.search(r"\bRUN\b", typed):
        typed = re.sub(r"\bRUN\b", newest_run(folder), typed)
    done = subprocess.run(
        ["bash", "-c", typed],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    # A shell says 128 + the signal's number; its parent, the number negated.
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    assert status == (int(exits[1]) if exits else 0), f"$ {command}\n{done.stdout}"
    if printed:
        wanted = r"\s*\n".join(".*".join(map(re.escape, line.rstrip().split("…"))) for line in printed)
        assert re.fullmatch(wanted + r"\s*", done.stdout), f"$ {command}\n{done.stdout}"
