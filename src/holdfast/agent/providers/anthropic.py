"""Models of Anthropic, by its official SDK."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import anthropic
import httpx2
import msgspec

from holdfast.agent import header
from holdfast.agent.model import ModelBusy, ModelCut, ModelError, ModelRefused, Reply, Request, Say
from holdfast.agent.pace import PACE
from holdfast.agent.providers import faults, prices, web
from holdfast.agent.providers.blocks import Assembly, params_of
from holdfast.agent.rate import seen_in
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Usage
from holdfast.core.retry import checked_seconds

_BASE_URL: Final = "https://api.anthropic.com"
_DRAIN_SECONDS: Final = 0.5


class Anthropic:
    """A model of Anthropic.

    `key` and `base_url` are those of `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL` where they are not given.
    `stall_seconds` is how long it may be silent; its pings count as life.
    """

    def __init__(
        self,
        model: str,
        *,
        key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        stall_seconds: float = web.STALL_SECONDS,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise InvalidInput(f"Anthropic(model) is a model's name, not {model!r}")
        self._model = model
        self._given_key, self._given_url = header.checked_key("Anthropic(key=)", key), base_url
        self._headers = header.checked_headers("Anthropic(headers=)", headers)
        self._stall = checked_seconds("Anthropic(stall_seconds=)", stall_seconds)
        self._made: tuple[httpx2.AsyncClient, str, anthropic.AsyncAnthropic] | None = None

    def __repr__(self) -> str:
        return f"Anthropic({self._model!r}, base_url={web.shown(self.base_url)!r})"

    @property
    def name(self) -> str:
        return f"anthropic:{self._model}"

    @property
    def base_url(self) -> str:
        """Where it is asked."""
        return (self._given_url or os.environ.get("ANTHROPIC_BASE_URL") or _BASE_URL).rstrip("/")

    @property
    def lane(self) -> str:
        digest = blake2b(self._key.encode(), digest_size=6).hexdigest() if self._key else "-"
        return f"anthropic {web.shown(self.base_url)} {digest}"

    @property
    def _key(self) -> str:
        return (self._given_key or os.environ.get("ANTHROPIC_API_KEY") or "").strip()

    def cost_of(self, usage: Usage) -> int | None:
        """Return what so much would cost, in nano-USD; None where nobody knows."""
        return prices.priced(usage, self._model, provider="anthropic").cost

    async def ask(self, request: Request, say: Say) -> Reply:
        if not self._key:
            raise ModelRefused(f"{self.name} has no key: set ANTHROPIC_API_KEY, or give Anthropic(key=…)")
        if not header.is_carried(self._key):
            raise ModelRefused(f"{self.name} cannot be asked: ANTHROPIC_API_KEY holds what a header cannot carry")
        assembly = Assembly(asked=self.name)
        with self._translated(assembly):
            await self._generate(params_of(request, model=self._model), assembly, say)
        reply = assembly.reply()
        await prices.load()
        used = prices.priced(reply.usage, reply.model or self._model, provider="anthropic", written=assembly.written)
        return msgspec.structs.replace(reply, usage=used)

    async def _generate(self, params: dict[str, Any], assembly: Assembly, say: Say) -> None:
        sdk = await self._sdk()
        stream = await sdk.messages.create(**params, stream=True)
        self._see(stream.response.headers, busy=False)
        async with stream:
            events = aiter(stream)
            async for event in events:
                for piece in assembly.take(event.to_dict()):
                    say(piece)
                if assembly.done:
                    await _drain(events)
                    return

    async def _sdk(self) -> anthropic.AsyncAnthropic:
        """Return the SDK over the connections of this process and event loop."""
        http = await web.client()
        if self._made is None or self._made[:2] != (http, self._key):
            made = anthropic.AsyncAnthropic(
                api_key=self._key,
                base_url=self.base_url,
                # Retries are durable and counted, so they are the agent's.
                max_retries=0,
                timeout=httpx2.Timeout(self._stall, connect=web.CONNECT_SECONDS),
                default_headers=self._headers or None,
                http_client=http,
            )
            self._made = (http, self._key, made)
        return self._made[2]

    def _see(self, headers: httpx2.Headers, *, busy: bool) -> None:
        PACE.after(self.lane, seen_in(_lower(headers), busy=busy, now=datetime.now(UTC)))

    @contextmanager
    def _translated(self, assembly: Assembly) -> Iterator[None]:
        """The only place that knows the exceptions of the SDK."""
        try:
            yield
        except anthropic.APIStatusError as error:
            raise self._of_status(error, assembly) from error
        except (anthropic.APIConnectionError, httpx2.RequestError, httpx2.StreamError) as error:
            raise self._of_line(error, assembly) from error
        except (ValueError, anthropic.APIResponseValidationError) as error:
            raise ModelCut(
                f"{self.name} sent what cannot be read: {self._told(error)}", usage=assembly.usage
            ) from error
        except (anthropic.AnthropicError, httpx2.InvalidURL, TypeError) as error:
            raise ModelRefused(f"{self.name} cannot be asked: {self._told(error)}") from error

    def _of_status(self, error: anthropic.APIStatusError, assembly: Assembly) -> ModelError:
        body = error.body if isinstance(error.body, dict) else {"message": self._told(error)}
        if error.response.status_code == 200:
            told = body.get("error", body)
            return faults.in_stream(told, model=self.name, begun=assembly.begun, usage=assembly.usage, key=self._key)
        headers = _lower(error.response.headers)
        found = faults.by_status(
            error.response.status_code, msgspec.json.encode(body), headers, model=self.name, key=self._key
        )
        self._see(error.response.headers, busy=isinstance(found, ModelBusy))
        return found

    def _of_line(self, error: Exception, assembly: Assembly) -> ModelError:
        cause = error if isinstance(error, httpx2.RequestError | httpx2.StreamError) else error.__cause__
        told = self._told(cause or error)
        if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
            return ModelBusy(f"{self.name} cannot be reached at {web.shown(self.base_url)}: {told}")
        if isinstance(cause, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
            return ModelRefused(f"{self.name} cannot be asked at {web.shown(self.base_url)}: {told}")
        if isinstance(cause, httpx2.TimeoutException):
            return ModelCut(f"{self.name} was silent for too long", usage=assembly.usage)
        return ModelCut(f"the line to {self.name} broke: {told}", usage=assembly.usage)

    def _told(self, error: BaseException) -> str:
        return faults.without_key(header.told(error), self._key)


def _lower(headers: httpx2.Headers) -> Mapping[str, str]:
    return {name.lower(): value for name, value in headers.items()}


async def _drain(events: AsyncIterator[Any]) -> None:
    """Read what comes after the end, so that the connection is free again; nothing there can spoil the reply."""
    with suppress(TimeoutError, ValueError, httpx2.RequestError, httpx2.StreamError, anthropic.AnthropicError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in events:
                pass
