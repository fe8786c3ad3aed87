"""What tests of coding programs share: small programs, executed as real processes."""

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rigs.waiting import wait_until


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The directory that programs work on."""
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Makes a command of the text of a Python program."""

    def make(text: str) -> list[str]:
        file = tmp_path / f"script-{len(list(tmp_path.iterdir()))}.py"
        file.write_text(text)
        return [sys.executable, "-I", "-S", str(file)]

    return make


def is_there(process: int) -> bool:
    """Say whether a process is alive; one that nobody has buried yet is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_free(workspace: Path) -> bool:
    """Say whether nobody is at work in a directory."""
    directory = os.open(workspace, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(directory)
    return True


def wait_free(workspace: Path) -> None:
    """Wait until nobody is at work in a directory."""
    wait_until(lambda: is_free(workspace), seconds=60, what="a free directory")
