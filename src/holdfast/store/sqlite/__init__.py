"""The store in one SQLite file: WAL, synchronous FULL, one writing connection per process."""

from holdfast.store.sqlite.driver import SqliteStore

__all__ = ["SqliteStore"]
