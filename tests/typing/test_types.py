"""Wrong arguments fail in the type checker, not in production."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def errors_in(*files: Path) -> dict[int, str]:
    """Return what mypy finds wrong in the last of the files, by line."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--show-error-codes", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(
        rf"^{re.escape(str(files[-1].relative_to(ROOT)))}:(\d+): error: (.*)$", done.stdout, re.MULTILINE
    )
    return {int(line): message for line, message in found}


@pytest.mark.slow
def test_right_calls_are_accepted_with_their_types() -> None:
    """What the documentation shows type-checks strictly, and results have the function's type."""
    assert errors_in(HERE / "right.py") == {}


@pytest.mark.slow
def test_every_wrong_call_is_refused_on_its_line() -> None:
    """Each marked line is an error, and no other line is."""
    marked = {
        number: line.strip()
        for number, line in enumerate((HERE / "wrong.py").read_text("utf-8").splitlines(), start=1)
        if "# wrong:" in line
    }
    assert len(marked) > 20
    refused = errors_in(HERE / "wrong.py")
    assert [marked[line] for line in marked if line not in refused] == []
    assert {line: message for line, message in refused.items() if line not in marked} == {}
