"""Requests to a provider that keeps what it generates: streams, looks and words, and what their failures mean."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

import httpx2
import msgspec

from holdfast.agent import header
from holdfast.agent.model import ModelBusy, ModelCut, ModelError, ModelRefused
from holdfast.agent.pace import PACE
from holdfast.agent.providers import faults, web
from holdfast.agent.providers.sse import Events
from holdfast.agent.rate import seen_in
from holdfast.core import limits

_DRAIN_SECONDS: Final = 0.5
"""How long the rest of a stream is waited for after its end was said, so that its connection can be used again."""
_NOT_CREATED: Final = 429
"""The one status that a provider sends before it creates anything, and that is worth coming back for."""


class Silent(ModelCut):
    """A stream said nothing for so long that its line may be dead; what it tells of goes on."""


@dataclass(frozen=True, slots=True)
class Line:
    """How one provider is asked."""

    name: str
    """Which model is asked, for what is told of a failure."""
    base_url: str
    headers: Mapping[str, str] = field(repr=False)
    key: str = field(repr=False)
    first_seconds: float
    """How long it may think before the first byte of an answer, and of what it creates."""
    stall_seconds: float
    """How long a stream may be silent."""

    @property
    def lane(self) -> str:
        """Whose rate limit its requests count against."""
        digest = blake2b(self.key.encode(), digest_size=6).hexdigest() if self.key else "-"
        return f"{self.name.partition(':')[0]} {web.shown(self.base_url)} {digest}"

    async def create(self, path: str, body: bytes) -> AsyncGenerator[str, None]:
        """Ask for a generation, and yield the data of the events that tell of it.

        Raises:
            ModelBusy: it was not created: the provider cannot be reached, or is asked too often.
            ModelRefused: it was not created, and will not be as it is.
            ModelCut: it may have been created.
        """
        async with aclosing(self._events("POST", path, body=body)) as events:
            async for data in events:
                yield data

    async def listen(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[str, None]:
        """Yield the data of the events that tell of what was created.

        Raises:
            ModelError: as `create`, of a request that creates nothing.
        """
        async with aclosing(self._events("GET", path, query=query)) as events:
            async for data in events:
                yield data

    async def ask(self, method: str, path: str) -> bytes:
        """Return what the provider says of what was created.

        Raises:
            ModelBusy, ModelCut: it does not say it now.
            ModelRefused: it never will.
        """
        with self.translated():
            response = await self._sent(method, path, None, {})
            try:
                async with asyncio.timeout(self.stall_seconds):
                    body = await response.aread()
            finally:
                await response.aclose()
            if response.status_code != 200:
                raise self._error(response, body)
            return body

    async def _events(
        self, method: str, path: str, *, body: bytes | None = None, query: Mapping[str, str] | None = None
    ) -> AsyncGenerator[str, None]:
        with self.translated():
            response = await self._sent(method, path, body, query or {})
            try:
                error = None
                if response.status_code != 200:
                    async with asyncio.timeout(self.stall_seconds):
                        error = self._error(response, await response.aread(), creating=body is not None)
                if body is not None:
                    self._see(response, busy=isinstance(error, ModelBusy))
                if error is not None:
                    raise error
                # Who creates waits long for the id, since to give up before it is to doubt; who listens can look again.
                first_seconds = self.first_seconds if body is not None else self.stall_seconds
                async with aclosing(self._read(response, first_seconds)) as pieces:
                    events = Events()
                    async for some in pieces:
                        for data in events.feed(some):
                            yield data
            finally:
                await response.aclose()

    async def _sent(self, method: str, path: str, body: bytes | None, query: Mapping[str, str]) -> httpx2.Response:
        client = await web.client()
        headers = {"accept": "text/event-stream, application/json", "accept-encoding": "identity", **self.headers}
        if body is not None:
            headers["content-type"] = "application/json"
        request = client.build_request(
            method, f"{self.base_url}{path}", content=body, headers=headers, params=dict(query) or None
        )
        async with asyncio.timeout(self.first_seconds):
            return await client.send(request, stream=True)

    async def _read(self, response: httpx2.Response, first_seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield a stream's bytes; only the time in which it is listened to counts as silence."""
        size, pieces, patience = 0, response.aiter_bytes(), first_seconds
        async with aclosing(pieces):
            while True:
                try:
                    async with asyncio.timeout(patience):
                        some = await anext(pieces)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    raise Silent(f"{self.name} was silent for {patience:g} s") from error
                patience = self.stall_seconds
                size += len(some)
                if size > limits.REPLY_BYTES:
                    raise ModelCut(f"{self.name} sent more than {limits.REPLY_BYTES} bytes")
                yield some

    def _error(self, response: httpx2.Response, body: bytes, *, creating: bool = False) -> ModelError:
        """Return the error that a reply is. Of a creation only some statuses say that nothing was created."""
        headers = {name.lower(): value for name, value in response.headers.items()}
        error = faults.by_status(response.status_code, body, headers, model=self.name, key=self.key)
        if creating and isinstance(error, ModelBusy) and error.status != _NOT_CREATED:
            return ModelCut(str(error), retry_after=error.retry_after, status=error.status)
        return error

    def _see(self, response: httpx2.Response, *, busy: bool) -> None:
        headers = {name.lower(): value for name, value in response.headers.items()}
        PACE.after(self.lane, seen_in(headers, busy=busy, now=datetime.now(UTC)))

    def _told(self, error: Exception) -> str:
        return faults.without_key(header.told(error), self.key)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """The only place that knows the exceptions of the network."""
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            where = web.shown(self.base_url)
            raise ModelBusy(f"{self.name} cannot be reached at {where}: {self._told(error)}") from error
        except (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL) as error:
            where = web.shown(self.base_url)
            raise ModelRefused(f"{self.name} cannot be asked at {where}: {self._told(error)}") from error
        except TimeoutError as error:
            raise Silent(f"{self.name} was silent for too long") from error
        except (httpx2.RequestError, httpx2.StreamError) as error:
            raise ModelCut(f"the line to {self.name} broke: {self._told(error)}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ModelCut(f"{self.name} sent what cannot be read: {error}") from error


async def drain(datas: AsyncGenerator[str, None]) -> None:
    """Read what comes after the end, so that the connection is free again; nothing there can spoil what was said."""
    with suppress(TimeoutError, ModelError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in datas:
                pass
