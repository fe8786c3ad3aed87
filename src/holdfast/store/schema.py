"""Numbered migrations: which SQL brings a store to the version this Holdfast writes."""

from importlib.resources import files
from typing import Final

APPLICATION_ID: Final = 0x484F4C44
"""Stands in the header of a SQLite file that is ours."""


def migrations(driver: str) -> list[str]:
    """Return a driver's migrations in order; the n-th brings version n-1 to n."""
    folder = files("holdfast.store") / "sql" / driver
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return [(folder / name).read_text() for name in names]
