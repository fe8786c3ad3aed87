"""The seam for crash tests: called by name before and after every transaction that writes."""

from collections.abc import Callable


def _nothing(name: str) -> None:
    return None


reached: Callable[[str], None] = _nothing
"""Replaced by a test that wants the process to die here."""
