"""What is broken on purpose, to see that the judge of the coding demo notices."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from holdfast.agent.harnesses.coding import keeper
from holdfast.agent.harnesses.coding.exchange import Exchange, Handle
from holdfast.agent.harnesses.coding.spool import Spools


def forgets_sessions() -> None:
    """Begin anew after a death, as if nothing had been written down."""
    find: Any = Exchange._find_session
    of: Any = Spools.of
    Exchange._find_session = lambda self, _: find(self, Handle(self._place, self._new_session()))  # type: ignore[method-assign]
    Spools.of = lambda self, key, *more: of(self, f"{key} {os.getpid()}", *more)  # type: ignore[method-assign]
    Exchange._chosen = lambda self, number=0: str(uuid4())  # type: ignore[method-assign]


def leaves_orphans() -> None:
    """Kill the program's own group at once, and nobody who left it."""
    text = Path(keeper.__file__).read_text()
    for sound, broken in (
        ("prctl(_SET_ADOPTING, 1)", "pass"),
        ("children = _children(os.getpid())", "children = None"),
        ("_signal_group(program, signal.SIGTERM)", "_signal_group(program, signal.SIGKILL)"),
        ("os.execvp(", "os.set_inheritable(self._order.directory, False); os.execvp("),
    ):
        assert sound in text
        text = text.replace(sound, broken)
    file, path = tempfile.mkstemp(suffix=".py")
    os.write(file, text.encode())
    os.close(file)
    keeper.__file__ = path


TWINS: Final[Mapping[str, Callable[[], None]]] = {
    "forgets_sessions": forgets_sessions,
    "leaves_orphans": leaves_orphans,
}
