"""Tracked files say nothing about the machine they were written on."""

import re
from typing import Final

import pytest

from tests.architecture.project import ROOT, tracked_files

MACHINE_PATH: Final = r"(?<![\w.~])/(?:home|root|work|Users)/"
PACKAGE_INDEX: Final = r"(?i)pypi\.(?:org|python)|pythonhosted\.org|index[-_]url|find[-_]links"


@pytest.mark.parametrize("pattern", [MACHINE_PATH, PACKAGE_INDEX], ids=["machine path", "package index"])
def test_no_tracked_file_names_a_place_of_one_machine(pattern: str) -> None:
    """A checkout works anywhere: no path of one machine, no address of one package index."""
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()[:100]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert not found
