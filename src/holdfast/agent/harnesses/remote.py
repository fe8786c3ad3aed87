"""A run of another Holdfast, or of any service that has its routes, as an agent's exchange: started once by its key."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from hashlib import blake2b
from typing import Any, Final

import httpx2
import msgspec

from holdfast.agent import header
from holdfast.agent.harness import Ask, CursorInvalid, Ended, Event, InDoubt, Known, Rests, Start, Told
from holdfast.agent.model import CallPiece, ModelBusy, ModelCut, ModelError, ModelRefused, ReasoningPiece, TextPiece
from holdfast.agent.providers import faults, web
from holdfast.agent.providers.sse import Events
from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.message import ASSISTANT, USER, Message, Text, Usage
from holdfast.core.retry import checked_seconds

_ASK_SECONDS: Final = 30.0
"""How long an answer that is no stream may take."""
_PEOPLE: Final = ("ask", "doubt", "signal", "callback", "diverged", "pinned", "outdated", "damaged", "unknown_entry")
"""What a run that waits may wait for without anything to hear of it until somebody acts."""
_SET_ASIDE: Final = ("paused", "exhausted", "quarantined")
_CONFLICT: Final = 409
_PIECES: Final = {"text": TextPiece, "reasoning": ReasoningPiece, "call": CallPiece}


class Remote:
    """An agent or a durable function of another Holdfast server takes the turn; its ending is the turn's.

    It is started once, whatever breaks here or there: by a key of the exchange, sent as `Idempotency-Key` and
    `X-Execution-ID`. Its events are followed by `Last-Event-ID`. Cancelling the run here cancels it there. While it
    waits there for a person, the run here rests and says so.
    """

    version = 1
    keyed = True
    in_doubt: InDoubt = "raise"
    takes_tools = False

    def __init__(
        self, url: str, name: str, *, token: str | None = None, headers: Mapping[str, str] | None = None,
        conversation: bool = True, stall_seconds: float = web.STALL_SECONDS, rest_seconds: float = 15.0,
    ) -> None:  # fmt: skip
        """Name what takes the turns; nothing is asked before a run is driven.

        Args:
            url: Where the server is.
            name: The agent or function there; it takes one text.
            token: What it lets in; by default that of `HOLDFAST_TOKEN`.
            headers: Sent with every request.
            conversation: Whether the turns of a conversation here are the turns of one there; a function needs none.
            stall_seconds: How long a stream may be silent before it is taken up again.
            rest_seconds: How often one that waits for a person is looked at.
        """
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidInput(f"Remote(url) is an address such as 'http://127.0.0.1:8700', not {url!r}")
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"Remote(name) is the name of an agent or a function there, not {name!r}")
        self._url, self._there = url.rstrip("/"), name
        self._given = header.checked_key("Remote(token=)", token)
        self._headers = header.checked_headers("Remote(headers=)", headers)
        self.has_conversation = conversation
        self._stall = checked_seconds("Remote(stall_seconds=)", stall_seconds, least=1e-3)
        self.rest_seconds = checked_seconds("Remote(rest_seconds=)", rest_seconds, least=1e-3)

    def __repr__(self) -> str:
        return f"Remote({web.shown(self._url)!r}, {self._there!r})"

    @property
    def name(self) -> str:
        return f"remote:{self._there}"

    @property
    def lane(self) -> str:
        digest = blake2b(self._token.encode(), digest_size=6).hexdigest() if self._token else "-"
        return f"remote {web.shown(self._url)} {digest}"

    @property
    def _token(self) -> str:
        return (self._given or os.environ.get("HOLDFAST_TOKEN") or "").strip()

    async def open(self, start: Start) -> "_Session":
        cursor = start.cursor
        if cursor is not None and (not isinstance(cursor, dict) or not isinstance(cursor.get("conversation"), str)):
            raise CursorInvalid(f"{cursor!r} names no conversation there", harness=self.name, what="corrupt")
        if start.instructions:
            raise InvalidInput(f"{self.name} has its own instructions: give them to the agent there")
        return _Session(self)

    # Asking

    async def ask(self, method: str, path: str, body: Any = None, *, key: str = "") -> Any:
        """Return the JSON that a request is answered with.

        Raises:
            ModelBusy: come back later.
            ModelCut: nobody knows whether it came through.
            ModelRefused: it is refused as it is.
        """
        content = msgspec.json.encode(body) if body is not None else None
        with self._translated():
            async with asyncio.timeout(_ASK_SECONDS):
                client = await web.client()
                address = f"{self._url}{path}"
                response = await client.request(method, address, content=content, headers=self._sent(key))
            if not response.is_success:
                raise self._refusal(response.status_code, response.content, response.headers)
            return msgspec.json.decode(response.content) if response.content else None

    async def events(self, run: str, after: str | None) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a run's events strictly behind one, as they come; it ends when the server has no more to send.

        Raises:
            ModelError: as `ask`.
        """
        headers = {**self._sent(""), "accept": "text/event-stream"}
        if after is not None:
            headers["last-event-id"] = after
        with self._translated():
            client = await web.client()
            request = client.build_request("GET", f"{self._url}/v1/runs/{run}/events", headers=headers)
            async with asyncio.timeout(self._stall):
                response = await client.send(request, stream=True)
            async with aclosing(response):
                if not response.is_success:
                    raise self._refusal(response.status_code, await response.aread(), response.headers)
                async with aclosing(self._data(response)) as lines:
                    async for data in lines:
                        yield msgspec.json.decode(data, type=dict[str, Any])

    async def _data(self, response: httpx2.Response) -> AsyncGenerator[str, None]:
        reader, pieces, size = Events(), response.aiter_bytes(), 0
        while size <= limits.REPLY_BYTES:  # taken up again behind the last event
            # Around each read, and not around the loop: what is done with an event takes its own time.
            async with asyncio.timeout(self._stall):
                some = await anext(pieces, None)
            if some is None:
                return
            size += len(some)
            for data in reader.feed(some):
                yield data

    def _sent(self, key: str) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        if key:
            headers["idempotency-key"] = headers["x-execution-id"] = key
        return headers | self._headers

    def _refusal(self, status: int, body: bytes, headers: Any) -> ModelError:
        if status == _CONFLICT:
            said, _ = faults.read_error(body, self._token)
            return ModelRefused(f"{self.name} answered {status}: {said}", status=status)
        lower = {name.lower(): value for name, value in headers.items()}
        return faults.by_status(status, body, lower, model=self.name, key=self._token)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The only place that knows the exceptions of the network."""
        at = web.shown(self._url)
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise ModelBusy(f"{self.name} cannot be reached at {at}: {header.told(error)}") from error
        except (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL) as error:
            raise ModelRefused(f"{self.name} cannot be asked at {at}: {header.told(error)}") from error
        except TimeoutError as error:
            raise ModelCut(f"{self.name} was silent for too long") from error
        except (httpx2.RequestError, httpx2.StreamError) as error:
            raise ModelCut(f"the line to {self.name} broke: {header.told(error)}") from error
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise ModelCut(f"{self.name} sent what cannot be read: {error}") from error


class _Session:
    """One turn with a remote run."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._spent: dict[str, _Spent] = {}

    async def create(self, ask: Ask) -> AsyncIterator[Event]:
        conversation = ask.cursor["conversation"] if ask.cursor is not None else _conversation(ask.key)
        body = {"name": self._remote._there, "input": _words(ask)}
        if self._remote.has_conversation:
            body["conversation"] = conversation
        begun = await self._remote.ask("POST", "/v1/runs", body, key=ask.key)
        run = begun.get("id") if isinstance(begun, dict) else None
        if not isinstance(run, str):
            raise ModelCut(f"{self._remote.name} started a run and did not say which")
        handle = {"run": run, "conversation": conversation}
        yield Known(handle)
        async with aclosing(self._follow(handle, None)) as events:
            async for event in events:
                yield event

    async def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncIterator[Event]:
        async with aclosing(self._follow(handle, after)) as events:
            async for event in events:
                yield event

    async def find(self, ask: Ask) -> None:
        """It is sent again under its key instead."""

    async def cancel(self, handle: Any) -> None:
        await self._remote.ask(
            "POST", f"/v1/runs/{handle['run']}/cancel", {"reason": "the run that waits was cancelled"}
        )

    async def close(self) -> None:
        """Connections are the process's."""

    async def _follow(self, handle: Any, after: str | None) -> AsyncGenerator[Event, None]:
        remote, run = self._remote, handle["run"]
        info = await self._info(run)
        if (why := _rests(info)) is not None:
            yield Rests(f"{remote.name} {run} {why}", remote.rest_seconds)
            return
        spent = self._spent.setdefault(run, _Spent())
        seen = after
        async with aclosing(remote.events(run, after)) as events:
            async for event in events:
                type, id = str(event.get("type")), str(event.get("id") or "")
                seen = id or seen
                data = event.get("data")
                spent.take(type, data)
                if type == "chunk" and (piece := _piece(data)) is not None:
                    yield Told(piece, id=id)
                elif type == "RunParked":
                    info = await self._info(run)
                    if (why := _rests(info)) is not None:
                        yield Rests(f"{remote.name} {run} {why}", remote.rest_seconds, id=id)
                        return
                elif type == "RunFinished":
                    yield self._ended(handle, await self._info(run), spent.usage, id)
                    return
        info = await self._info(run)
        if info.get("status") in ("completed", "failed", "cancelled"):
            yield self._ended(handle, info, spent.usage, seen or "")

    async def _info(self, run: str) -> dict[str, Any]:
        info = await self._remote.ask("GET", f"/v1/runs/{run}")
        if not isinstance(info, dict):
            raise ModelCut(f"{self._remote.name} does not say where run {run} stands")
        return info

    def _ended(self, handle: Any, info: dict[str, Any], usage: Usage, id: str) -> Ended:
        status, run = info.get("status"), handle["run"]
        if status == "completed":
            result = info.get("result")
            text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
            message = Message(ASSISTANT, (Text(text),))
            cursor = {"conversation": handle["conversation"]}
            return Ended(message=message, cursor=cursor, usage=usage, model=self._remote.name, id=id)
        if status not in ("failed", "cancelled"):
            raise ModelCut(f"{self._remote.name} {run} has ended, and its server says that it is {status}")
        why = f"{self._remote.name} {run} {status}: {info.get('reason') or 'no reason is given'}"
        return Ended(how="failed", why=why, usage=usage, id=id)


class _Spent:
    """What a run's own entries say that it took; what its children took is not in them."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._unknown = False

    def take(self, type: str, data: Any) -> None:
        """Add an event."""
        usage = data.get("usage") if isinstance(data, dict) else None
        if type == "ChildSpawned":
            self._unknown = True
        if isinstance(usage, dict):
            for name in ("input", "output", "cached", "cost"):
                if isinstance(usage.get(name), int):
                    self._known[name] = self._known.get(name, 0) + usage[name]

    @property
    def usage(self) -> Usage:
        """What it comes to; nothing is known of a run that has children."""
        return Usage() if self._unknown else Usage(**self._known)


def _words(ask: Ask) -> str:
    """Return all that is told, as one text."""
    return "\n\n".join(message.text for message in ask.messages if message.role == USER)


def _conversation(key: str) -> str:
    return f"remote-{blake2b(key.encode(), digest_size=12).hexdigest()}"


def _piece(data: Any) -> Any:
    value = data.get("value") if isinstance(data, dict) else None
    kind = _PIECES.get(value.get("kind", "")) if isinstance(value, dict) else None
    if kind is None:
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _rests(info: Mapping[str, Any]) -> str | None:
    """Return why there is nothing to hear of a run until somebody acts; None where there may be."""
    status, reason = info.get("status"), str(info.get("reason") or "")
    if status in _SET_ASIDE or (status == "waiting" and reason.startswith(_PEOPLE)):
        return f"is {status} there: {reason}"
    return None
