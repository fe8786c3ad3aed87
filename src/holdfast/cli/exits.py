"""What a command's exit status says, and the table that turns errors into it."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from holdfast.core.errors import (
    Conflict,
    Damaged,
    HoldfastError,
    InvalidInput,
    NotFound,
    StoreError,
)


class Exit(IntEnum):
    """The exit statuses of every command."""

    FINE = 0
    FAILED = 1
    """The run failed, or something is damaged."""
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    STORE = 5
    """The store cannot be used: not there, locked, full, not ours, newer, corrupt."""
    PERSON = 6
    """The run waits for a person."""
    INTERRUPTED = 130


STATUS: Final[Mapping[type[HoldfastError], Exit]] = {
    HoldfastError: Exit.FAILED,
    Damaged: Exit.FAILED,
    InvalidInput: Exit.USAGE,
    NotFound: Exit.NOT_FOUND,
    Conflict: Exit.CONFLICT,
    StoreError: Exit.STORE,
}
"""An error's own line, or that of its nearest ancestor here."""


def status_of(error: HoldfastError) -> Exit:
    """Return the exit status of a command that ended in `error`."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
