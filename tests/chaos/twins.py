"""Deliberately broken twins of Holdfast: each breaks one promise, and the same checks must catch each of them."""

from typing import Any


def apply(twin: str, place: str) -> dict[str, Any]:
    """Break this process in the way that `twin` names; return what its store is opened with."""
    return {}
