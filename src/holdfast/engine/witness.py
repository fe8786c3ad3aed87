"""The seam for tests that count: called whenever a step's function has returned, before that is recorded."""

from collections.abc import Callable

from holdfast.store.value import Lease


def _nobody(lease: Lease, step: str, attempt: int) -> None:
    return None


performed: Callable[[Lease, str, int], None] = _nobody
"""Replaced by a test that wants to know what was performed, by the lease that it happened under and its step key."""
