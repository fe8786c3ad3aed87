"""A stream of messages to one reader: bounded, kept alive, and cut when it must be."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final, cast

import anyio
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Message, Receive, Scope, Send

from holdfast.core import limits
from holdfast.core.errors import HoldfastError
from holdfast.server.errors import NotAcceptable, TooManyStreams
from holdfast.server.wire import ALIVE, NDJSON, SSE, WRITERS, Line, failure

_RETRY: Final = b"retry: 1000\n\n"
"""How long a browser waits before it connects again, in ms."""


class Streams:
    """The streams that a server has open, so many at most."""

    def __init__(self, *, most: int = limits.OPEN_STREAMS, slow_seconds: float, alive_seconds: float) -> None:
        self.most, self.slow_seconds, self.alive_seconds = most, slow_seconds, alive_seconds
        self._open: set[anyio.CancelScope] = set()
        self._closed = False

    @property
    def open(self) -> int:
        """How many there are."""
        return len(self._open)

    def close(self) -> None:
        """Cut every stream, and begin no other: their readers connect elsewhere and lose nothing."""
        self._closed = True
        for scope in self._open:
            scope.cancel()

    def answer(self, lines: AsyncGenerator[Line, None], form: str) -> "Stream":
        """Return the answer that sends these messages.

        Raises:
            TooManyStreams: there are as many as there may be, or the server is about to leave.
        """
        self.check()
        return Stream(self, lines, form)

    def check(self) -> None:
        """Refuse what would need another stream, before anything is begun for it.

        Raises:
            TooManyStreams: as for `answer`.
        """
        if self._closed:
            raise TooManyStreams("this server is about to leave")
        if self.open >= self.most:
            raise TooManyStreams(f"this server has {self.most:,} streams open, and no more")

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a stream, and let it be cut."""
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                yield
            finally:
                self._open.discard(scope)


class Stream(EventSourceResponse):
    """One stream; a reader that takes nothing is cut, and a cut stream lacks its last chunk, so that no reader takes it
    for one that is over."""

    def __init__(self, streams: Streams, lines: AsyncGenerator[Line, None], form: str) -> None:
        super().__init__(
            _written(lines, form),
            media_type=form,
            headers={"Cache-Control": "no-store"},
            ping=streams.alive_seconds,
            ping_message_factory=cast(Any, lambda: ALIVE[form]),
            send_timeout=streams.slow_seconds,
        )
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Whoever does not read connects again, with the last id that it has.
        async def send_soon(message: Message) -> None:
            with anyio.move_on_after(self._streams.slow_seconds) as patience:
                await send(message)
            if patience.cancelled_caught:
                raise SendTimeoutError

        with self._streams.under_way(), suppress(SendTimeoutError):
            await super().__call__(scope, receive, send_soon)


async def _written(lines: AsyncGenerator[Line, None], form: str) -> AsyncIterator[bytes]:
    write = WRITERS[form]
    if form == SSE:
        yield _RETRY
    async with aclosing(lines):
        try:
            async for line in lines:
                yield write(line)
        except HoldfastError as error:
            yield write(failure(error))


def form_of(accept: str, first: str = SSE) -> str:
    """Return the form of stream that a request accepts; of two that it likes as well, the first.

    Raises:
        NotAcceptable: it accepts neither.
    """
    wanted: dict[str, float] = {}
    for each in accept.split(",") if accept.strip() else ["*/*"]:
        kind, *parameters = (part.strip().lower() for part in each.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            wanted[kind] = float(quality)
        except ValueError:
            wanted[kind] = 0.0
    places = {
        SSE: [SSE, "text/*", "*/*"],
        NDJSON: [NDJSON, "application/*", "*/*"],
    }
    found = {form: next((wanted[kind] for kind in kinds if kind in wanted), 0.0) for form, kinds in places.items()}
    best = max(found, key=lambda form: (found[form], form == first))
    if found[best] <= 0:
        raise NotAcceptable(f"no stream has the form {accept[:100]!r}")
    return best
