"""Who is at the other end of a connection on this machine."""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

_ESTABLISHED: Final = "01"


def pid_at(port: int, *, to: int) -> int | None:
    """Return the process that has a connection from `port` to the port `to`; None if it has gone."""
    socket = _socket(port, to)
    for folder in Path("/proc").iterdir() if socket is not None else ():
        # Processes and their files come and go while they are looked at.
        with contextlib.suppress(OSError):
            files = os.listdir(folder / "fd") if folder.name.isdigit() else []
            if any(os.readlink(folder / "fd" / file) == socket for file in files):
                return int(folder.name)
    return None


def _socket(port: int, to: int) -> str | None:
    """Return what a file that is this connection's end is a link to."""
    ends = re.compile(rf"\s*\d+: [0-9A-F]+:{port:04X} [0-9A-F]+:{to:04X} {_ESTABLISHED}")
    for line in Path("/proc/net/tcp").read_text("ascii").splitlines():
        if ends.match(line):
            return f"socket:[{line.split()[9]}]"
    return None
