"""Server-sent events out of bytes, however the network cut them."""

import re
from collections.abc import Iterator
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class Events:
    """Reads a stream of events without doing any I/O.

    Bytes become text only as whole lines, so that a character that the network split is whole again.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[str] = []

    def feed(self, some: bytes) -> Iterator[str]:
        """Yield the data of each event that is now whole; an event without data is none.

        Raises:
            UnicodeDecodeError: a whole line is not UTF-8.
        """
        held = self._rest.endswith(b"\r")
        self._rest += some
        if not held and b"\n" not in some and b"\r" not in some:
            return
        # The second half of a line's end may be still to come, and would then look like an empty line.
        whole, held_back = (self._rest[:-1], b"\r") if self._rest.endswith(b"\r") else (self._rest, b"")
        *lines, rest = _LINE_END.split(whole)
        self._rest = bytearray(rest + held_back)
        for line in lines:
            if line:
                self._field(line.decode())
            elif self._data:
                data, self._data = "\n".join(self._data), []
                yield data

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
