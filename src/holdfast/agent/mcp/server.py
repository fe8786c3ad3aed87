"""An MCP server as a set of tools."""

import asyncio
import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from holdfast.agent.header import checked_headers
from holdfast.agent.mcp.content import told
from holdfast.agent.mcp.session import ServerGone, Session, Spoken
from holdfast.agent.mcp.transport import address, program
from holdfast.agent.model import ToolSpec
from holdfast.agent.tool import FoundTool, Tool, ToolsetUnavailable
from holdfast.core import limits
from holdfast.core.errors import InvalidInput, ToolError
from holdfast.core.ids import checked_text
from holdfast.core.retry import Retry, checked_seconds
from holdfast.core.status import Effect
from holdfast.engine.policy import Policy, as_effect
from holdfast.engine.step import Step

if TYPE_CHECKING:
    from mcp import types
    from mcp.client._transport import TransportStreams

_KEY: Final = "holdfast/idempotency-key"
"""Under which a call's `_meta` carries the key that is the same at every attempt."""
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH: Final = 64


class Server:
    """The tools of one MCP server, for an agent's `tools=`.

    It is a program, given by its command, or an address. It is opened when a run first needs it and opened anew after
    it died; every event loop has a connection of its own, which ends with the loop or by `close`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str] | None = None,
        *,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        only: Collection[str] | None = None,
        effects: Effect | str | Mapping[str, Effect | str] | None = None,
        needs_approval: bool | Collection[str] = False,
        timeout: float | timedelta | None = None,
        retry: Retry | None = None,
        open_seconds: float = 30.0,
    ) -> None:
        if (command is None) == (url is None):
            raise InvalidInput(f"MCP server {name}: give its command or its url=")
        if isinstance(command, str) or (command is not None and not command):
            raise InvalidInput(f"MCP server {name}: the command is a list of words: ['program', 'argument']")
        for option, value in (("only=", only), ("needs_approval=", needs_approval)):
            if isinstance(value, str):
                raise InvalidInput(f"MCP server {name}: {option} is a list of names, not one text")
        self._name = checked_text("the name of an MCP server", name, limits.NAME_BYTES)
        self._command, self._env, self._cwd = tuple(command or ()), env, cwd
        self._url, self._headers = url, checked_headers(f"MCP server {name}", headers)
        self._prefix, self._only, self._approval = prefix, only, needs_approval
        self._effects = _effects(effects)
        self._timeout, self._retry = timeout, retry
        self._open_seconds = checked_seconds("open_seconds=", open_seconds, least=1e-3)
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, Session] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<MCP server {self._name}>"

    @property
    def name(self) -> str:
        """Under which a run records the list of its tools."""
        return self._name

    async def find(self) -> Sequence[FoundTool]:
        """Return the tools that the server lists now, those of `only=`, in the server's order.

        Raises:
            ToolsetUnavailable: it cannot be opened or does not answer, or lacks one of `only=`.
        """
        listed = await self._session().tools()
        missing = sorted(set(self._only or ()) - {tool.name for tool in listed})
        if missing:
            raise ToolsetUnavailable(f"MCP server {self._name} has no tool {', '.join(missing)}")
        found: dict[str, FoundTool] = {}
        for tool in listed:
            if self._only is None or tool.name in self._only:
                one = self._found(tool, found)
                found[one.name] = one
        return list(found.values())

    def make(self, found: FoundTool) -> Tool[..., Any]:
        """Return a tool that calls the server's."""

        async def call(step: Step[Any], /, **arguments: Any) -> str:
            return await self._call(found.source, step, arguments)

        call.__name__ = call.__qualname__ = found.name
        policy = Policy(
            effect=found.effect,
            timeout=self._timeout,
            retry=self._retry or _retry_of(found.effect),
            not_performed=(ToolsetUnavailable, ToolError),
        )
        spec = ToolSpec(name=found.name, description=found.description, schema=found.schema)
        asked = self._approval if isinstance(self._approval, bool) else found.source in self._approval
        return Tool(call, spec, policy, approval=asked)

    async def close(self) -> None:
        """End this event loop's connection, and the program that was started for it; the next call opens anew."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _session(self) -> Session:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.is_over:
            session = self._sessions[loop] = Session(self._name, self._connect, self._open_seconds)
        return session

    def _connect(self, spoken: Spoken) -> "AbstractAsyncContextManager[TransportStreams]":
        if self._url is not None:
            return address(self._url, self._headers)
        return program(self._name, self._command, self._env, self._cwd, spoken)

    def _found(self, tool: "types.Tool", others: Collection[str]) -> FoundTool:
        plain = _FOREIGN.sub("_", self._prefix + tool.name)[:_NAME_LENGTH]
        name, number = plain, 2
        while name in others:
            name, number = f"{plain[: _NAME_LENGTH - 4]}_{number}", number + 1
        return FoundTool(
            name=name,
            source=tool.name,
            description=inspect.cleandoc(tool.description or tool.title or ""),
            schema={"type": "object", "properties": {}} | tool.input_schema,
            effect=self._effect_of(tool),
        )

    def _effect_of(self, tool: "types.Tool") -> Effect:
        said = self._effects.get(tool.name) or self._effects.get("*")
        if said is not None:
            return said
        hints = tool.annotations
        if hints is not None and hints.read_only_hint:
            return Effect.REPEAT
        return Effect.KEYED if hints is not None and hints.idempotent_hint else Effect.ONCE

    async def _call(self, name: str, step: Step[Any], arguments: Mapping[str, Any]) -> str:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            step.emit({"progress": progress, "total": total, "message": message})

        session = self._session()
        result = await session.call(name, arguments, meta={_KEY: step.idempotency_key}, progress=tell)
        if result.is_error:
            raise ToolError(told(result) or f"{name} failed and does not say why")
        return told(result)


def _effects(said: Effect | str | Mapping[str, Effect | str] | None) -> dict[str, Effect]:
    """Return effects by the server's own names, `*` for all others."""
    if said is None:
        return {}
    given = said if isinstance(said, Mapping) else {"*": said}
    return {name: effect for name, word in given.items() if (effect := as_effect(word)) is not None}


def _retry_of(effect: Effect) -> Retry:
    """Return how a call is tried again: where nothing was sent always, where it broke off only if that does no harm."""
    again: tuple[type[Exception], ...] = (ToolsetUnavailable,)
    return Retry(attempts=3, first=0.5, on=again if effect is Effect.ONCE else (*again, ServerGone))
