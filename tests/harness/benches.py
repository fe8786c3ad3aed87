"""Benches of the harnesses that need no service of their own kind."""

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.message import ASSISTANT, Message, Text
from holdfast.harness import Ended, Harness
from holdfast.testing.harness import Creation, Line
from holdfast.testing.scripted_harness import ScriptedHarness, ScriptedProvider

Make = Callable[..., ScriptedHarness]


class ScriptedBench:
    """The scripted harness, or a twin of it."""

    caps = True
    tells = True
    wrong_cursors: Sequence[Any] = ({"at": 7}, {"at": None})

    def __init__(self, make: Make = ScriptedHarness, **options: Any) -> None:
        self._make, self._options = make, options
        self.clear("nothing")

    def harness(self) -> Harness:
        """Return another one for the same provider."""
        return self._make(*self._lines, provider=self._provider, **self._options)

    def clear(self, *lines: Line) -> None:
        """Begin with an empty provider."""
        self._provider, self._lines = ScriptedProvider(), [_line(line) for line in lines]

    def created(self) -> Sequence[Creation]:
        """Return what the provider has."""
        return [Creation(one.id, one.parent) for one in self._provider.created]

    def cancelled(self) -> Sequence[str]:
        """Return what was ended."""
        return self._provider.cancelled

    def cut(self, after: int, *, clean: bool) -> None:
        """Let the provider cut the next stream."""
        self._provider.cuts.append((after, clean))

    def cap(self) -> None:
        """Let every exchange end at its cap."""
        said = Message(ASSISTANT, (Text("so far"),))
        self._lines = [lambda ask: Ended(message=said, cursor={"at": "ex-1"}, how="limit", why="10 turns")]

    def hold(self) -> None:
        """Let nothing end."""
        self._provider.held = True

    def release(self) -> None:
        """Let it."""
        self._provider.held = False

    def close(self) -> None:
        """Nothing is open."""


def _line(line: Line) -> Any:
    return line if isinstance(line, str) else list(line)
