"""A folder of its own for every test, with the program in it and an empty store beside it."""

import shutil
from pathlib import Path

import pytest

from tests.surface.command import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run commands in a folder that holds `program.py`."""
    shutil.copy(Path(__file__).with_name("program.py"), tmp_path / "program.py")
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_STORE", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", "grace")
    return Shell(tmp_path, capsys)
