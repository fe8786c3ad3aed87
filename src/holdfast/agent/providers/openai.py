"""Any endpoint that speaks OpenAI's chat completions."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

import httpx2
import msgspec

from holdfast.agent import header
from holdfast.agent.model import ModelBusy, ModelCut, ModelError, ModelRefused, Reply, Request, Say
from holdfast.agent.pace import PACE
from holdfast.agent.providers import faults, prices, web
from holdfast.agent.providers.chat import DONE, Assembly, body_of
from holdfast.agent.providers.sse import Events
from holdfast.agent.rate import seen_in
from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Usage
from holdfast.core.retry import checked_seconds

_BASE_URL: Final = "https://api.openai.com/v1"
_DRAIN_SECONDS: Final = 0.5
"""How long the rest of a stream is waited for after its end was said, so that its connection can be used again."""


class OpenAI:
    """A model of OpenAI, or of any server that has its chat completions.

    `key` and `base_url` are those of `OPENAI_API_KEY` and `OPENAI_BASE_URL` where they are not given; a server of your
    own needs no key. `first_seconds` is how long it may think before its first byte, `stall_seconds` how long it may
    be silent after that.
    """

    def __init__(
        self,
        model: str,
        *,
        key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = True,
        first_seconds: float = web.FIRST_SECONDS,
        stall_seconds: float = web.STALL_SECONDS,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise InvalidInput(f"OpenAI(model) is a model's name, not {model!r}")
        self._model = model
        self._given_key, self._given_url = header.checked_key("OpenAI(key=)", key), base_url
        self._headers = header.checked_headers("OpenAI(headers=)", headers)
        self._stream = stream
        self._first = checked_seconds("OpenAI(first_seconds=)", first_seconds)
        self._stall = checked_seconds("OpenAI(stall_seconds=)", stall_seconds)

    def __repr__(self) -> str:
        return f"OpenAI({self._model!r}, base_url={web.shown(self.base_url)!r})"

    @property
    def name(self) -> str:
        return f"openai:{self._model}"

    @property
    def base_url(self) -> str:
        """Where it is asked."""
        return (self._given_url or os.environ.get("OPENAI_BASE_URL") or _BASE_URL).rstrip("/")

    @property
    def lane(self) -> str:
        digest = blake2b(self._key.encode(), digest_size=6).hexdigest() if self._key else "-"
        return f"openai {web.shown(self.base_url)} {digest}"

    @property
    def _key(self) -> str:
        return (self._given_key or os.environ.get("OPENAI_API_KEY") or "").strip()

    @property
    def _provider(self) -> str:
        """Whose native blocks it understands: those of the same host."""
        return "openai" if self.base_url == _BASE_URL else f"openai@{httpx2.URL(self.base_url).host}"

    def cost_of(self, usage: Usage) -> int | None:
        """Return what so much would cost, in nano-USD; None where nobody knows."""
        return prices.priced(usage, self._model, url=self.base_url).cost

    async def ask(self, request: Request, say: Say) -> Reply:
        if not self._key and self.base_url == _BASE_URL:
            raise ModelRefused(f"{self.name} has no key: set OPENAI_API_KEY, or give OpenAI(key=…)")
        if not header.is_carried(self._key):
            raise ModelRefused(f"{self.name} cannot be asked: OPENAI_API_KEY holds what a header cannot carry")
        assembly = Assembly(asked=self.name, provider=self._provider, key=self._key)
        body = body_of(request, model=self._model, provider=self._provider, stream=self._stream)
        with self._translated(assembly):
            await self._generate(body, self._sent_headers(request), assembly, say)
        reply = assembly.reply()
        await prices.load()
        used = prices.priced(reply.usage, reply.model or self._model, url=self.base_url)
        return msgspec.structs.replace(reply, usage=used)

    async def _generate(self, body: bytes, headers: Mapping[str, str], assembly: Assembly, say: Say) -> None:
        client = await web.client()
        async with asyncio.timeout(self._first) as patience:
            address = f"{self.base_url}/chat/completions"
            async with client.stream("POST", address, content=body, headers=headers) as response:
                busy = await self._checked(response)
                if busy is not None:
                    raise busy
                async with aclosing(self._alive(response, patience)) as pieces:
                    if "text/event-stream" not in response.headers.get("content-type", ""):
                        await _read_whole(pieces, assembly, say)
                        return
                    await _read_events(pieces, assembly, say)
                    if assembly.done:
                        await _drain(pieces)

    async def _checked(self, response: httpx2.Response) -> ModelError | None:
        """Tell what the headers say of the rate limit, and return the error that a reply is, if it is one."""
        headers = {name.lower(): value for name, value in response.headers.items()}
        error = None
        if response.status_code != 200:
            body = await response.aread()
            error = faults.by_status(response.status_code, body, headers, model=self.name, key=self._key)
        seen = seen_in(headers, busy=isinstance(error, ModelBusy), now=datetime.now(UTC))
        PACE.after(self.lane, seen)
        return error

    async def _alive(self, response: httpx2.Response, patience: asyncio.Timeout) -> AsyncGenerator[bytes, None]:
        """Yield a reply's bytes; each gives it `stall_seconds` more."""
        size = 0
        async for some in response.aiter_bytes():
            size += len(some)
            if size > limits.REPLY_BYTES:
                raise ModelCut(f"{self.name} sent more than {limits.REPLY_BYTES} bytes", usage=Usage())
            patience.reschedule(asyncio.get_running_loop().time() + self._stall)
            yield some

    def _sent_headers(self, request: Request) -> Mapping[str, str]:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        headers["accept"] = "text/event-stream" if self._stream else "application/json"
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        if request.key:
            headers["idempotency-key"] = request.key
        return headers | self._headers

    def _told(self, error: Exception) -> str:
        return faults.without_key(header.told(error), self._key)

    @contextmanager
    def _translated(self, assembly: Assembly) -> Iterator[None]:
        """The only place that knows the exceptions of the network."""
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise ModelBusy(
                f"{self.name} cannot be reached at {web.shown(self.base_url)}: {self._told(error)}"
            ) from error
        except (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL) as error:
            raise ModelRefused(
                f"{self.name} cannot be asked at {web.shown(self.base_url)}: {self._told(error)}"
            ) from error
        except TimeoutError as error:
            usage = assembly.usage or Usage()
            raise ModelCut(f"{self.name} was silent for too long", usage=usage) from error
        except (httpx2.RequestError, httpx2.StreamError) as error:
            usage = assembly.usage or Usage()
            raise ModelCut(f"the line to {self.name} broke: {self._told(error)}", usage=usage) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            usage = assembly.usage or Usage()
            raise ModelCut(f"{self.name} sent what cannot be read: {error}", usage=usage) from error


async def _read_events(pieces: AsyncIterator[bytes], assembly: Assembly, say: Say) -> None:
    events = Events()
    async for some in pieces:
        for data in events.feed(some):
            for piece in assembly.take(data):
                say(piece)
        if assembly.done:
            return


async def _read_whole(pieces: AsyncIterator[bytes], assembly: Assembly, say: Say) -> None:
    body = b"".join([some async for some in pieces])
    for piece in assembly.take(body):
        say(piece)
    list(assembly.take(DONE))


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Read what comes after the end, so that the connection is free again; nothing there can spoil the reply."""
    with suppress(TimeoutError, httpx2.RequestError, httpx2.StreamError, ModelError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in pieces:
                pass
