"""A turn in a provider's stateful API: generations in the background, each created once and found again by its id."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.agent import header
from holdfast.agent.harness import Ask, CursorInvalid, Ended, Event, InDoubt, Known, Rests, Start, Told
from holdfast.agent.harnesses.line import Line, Silent, drain
from holdfast.agent.harnesses.wire import Fold, Wire
from holdfast.agent.model import ModelCut, ModelRefused
from holdfast.agent.providers import prices, web
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Usage
from holdfast.core.retry import checked_seconds

VERSION: Final = 1
REST_SECONDS: Final = 5.0
"""How long a run rests while its generation goes on and has nothing to tell."""


class StatefulSession:
    """One turn of a conversation that the provider keeps."""

    def __init__(self, wire: Wire, line: Line, model: str, start: Start, rest_seconds: float) -> None:
        self._wire, self._line, self._model, self._start = wire, line, model, start
        self._rest_seconds = rest_seconds
        self._folds: dict[str, Fold] = {}
        """What was heard in this session, by id."""

    async def create(self, ask: Ask) -> AsyncGenerator[Event, None]:
        previous = self._id(ask.cursor) if ask.cursor is not None else None
        fold = self._wire.fold(self._line.name, previous)
        try:
            body = self._wire.body(self._model, self._start, ask.messages, previous)
        except (InvalidInput, TypeError, ValueError) as error:
            # Nothing went out, so that nothing is in doubt.
            raise ModelRefused(f"{self._line.name} cannot be asked: {error}") from error
        async with aclosing(self._heard(fold, self._line.create(self._wire.path, body))) as events:
            async for event in events:
                yield event

    async def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncGenerator[Event, None]:
        id = self._id(handle)
        previous = self._id(ask.cursor) if ask.cursor is not None else None
        fold = self._folds.get(id) if after is not None else None
        if fold is None:
            fold = self._wire.fold(self._line.name, previous)
        # Behind the last event that was taken, which may tell nothing and lie behind the last that was told.
        after = fold.after or None
        self._folds[id] = fold
        await self._look(fold, id)
        if fold.over:
            yield await self._ended(fold)
            return
        listening = self._line.listen(self._path(id), self._wire.query(after))
        async with aclosing(self._heard(fold, listening)) as events:
            try:
                async for event in events:
                    yield event
            except ModelRefused:
                # It is there, and does not tell its events: it is looked at until it has ended.
                yield Rests(f"{self._wire.word} {id} goes on at the provider", self._rest_seconds)

    async def find(self, ask: Ask) -> Any:
        return None  # neither provider can be asked for what has no id yet

    async def cancel(self, handle: Any) -> None:
        with suppress(ModelRefused):  # it has ended, or is gone
            await self._line.ask("POST", f"{self._path(self._id(handle))}/cancel")

    async def close(self) -> None:
        self._folds.clear()

    async def _heard(self, fold: Fold, stream: AsyncGenerator[str, None]) -> AsyncGenerator[Event, None]:
        """Yield what a stream tells, until it has told the end."""
        try:
            async with aclosing(stream) as datas:
                async for data in datas:
                    for event in self._taken(fold, data):
                        yield event
                    if fold.over:
                        await drain(datas)
                        break
        except Silent:
            if not fold.id:
                raise
            # A line may be dead, or a thought long: who looks again knows.
            yield Rests(f"{self._wire.word} {fold.id} is silent", self._rest_seconds)
            return
        if not fold.over:
            raise ModelCut(f"{self._line.name} ended its stream before its answer", usage=fold.usage)
        if not fold.sure:
            await self._look(fold, fold.id)
        yield await self._ended(fold)

    def _taken(self, fold: Fold, data: str) -> list[Event]:
        known = fold.id
        with self._line.translated():
            pieces = list(fold.take(data))
        told: list[Event] = [Told(piece, fold.after) for piece in pieces]
        if fold.id == known:
            return told
        self._folds[fold.id] = fold
        return [Known({self._wire.word: fold.id}, fold.after), *told]

    async def _look(self, fold: Fold, id: str) -> None:
        resource = await self._line.ask("GET", self._path(id))
        with self._line.translated():
            fold.look(resource)

    async def _ended(self, fold: Fold) -> Ended:
        ended = fold.ended()
        await prices.load()
        used = prices.priced(ended.usage, ended.model or self._model, url=self._line.base_url)
        return msgspec.structs.replace(ended, usage=used)

    def _id(self, handle: Any) -> str:
        return str(handle[self._wire.word])

    def _path(self, id: str) -> str:
        return f"{self._wire.path}/{quote(id, safe='')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a provider is asked: its address and key, given or from the environment, and for how long it is waited."""

    key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    first_seconds: float = web.FIRST_SECONDS
    stall_seconds: float = web.STALL_SECONDS
    rest_seconds: float = REST_SECONDS
    in_doubt: InDoubt = "again"

    def checked(self, what: str) -> "Asking":
        """Return it where it means something.

        Raises:
            InvalidInput: some of it means nothing.
        """
        header.checked_key(f"{what}(key=)", self.key)
        header.checked_headers(f"{what}(headers=)", self.headers)
        checked_seconds(f"{what}(first_seconds=)", self.first_seconds)
        checked_seconds(f"{what}(stall_seconds=)", self.stall_seconds)
        checked_seconds(f"{what}(rest_seconds=)", self.rest_seconds)
        if self.in_doubt not in ("again", "raise", "wait"):
            raise InvalidInput(f"{what}(in_doubt=) is 'again', 'raise' or 'wait', not {self.in_doubt!r}")
        return self


class Stateful:
    """A harness of one model behind a stateful API."""

    wire: Wire
    provider: str
    default_url: str
    key_variables: tuple[str, ...]
    url_variable: str
    """Where the environment has the key, and the address."""

    def __init__(self, model: str, asking: Asking) -> None:
        kind = type(self).__name__
        if not isinstance(model, str) or not model:
            raise InvalidInput(f"{kind}(model) is a model's name, not {model!r}")
        self._model, self._asking = model, asking.checked(kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, base_url={web.shown(self._base_url)!r})"

    @property
    def name(self) -> str:
        return f"{self.provider}-{self.wire.word}s"

    @property
    def version(self) -> int:
        return VERSION

    @property
    def lane(self) -> str:
        return self._line.lane

    @property
    def keyed(self) -> bool:
        return False

    @property
    def in_doubt(self) -> InDoubt:
        return self._asking.in_doubt

    @property
    def takes_tools(self) -> bool:
        return True

    def cost_of(self, usage: Usage) -> int | None:
        """Return what so much would cost, in nano-USD; None where nobody knows."""
        return prices.priced(usage, self._model, url=self._base_url).cost

    async def open(self, start: Start) -> StatefulSession:
        """Return a session of a turn."""
        if start.cursor is not None and not self._reads(start.cursor):
            raise CursorInvalid(f"{start.cursor!r} names no {self.wire.word}", harness=self.name)
        line = self._line
        if not line.key and self._base_url == self.default_url:
            variable, kind = self.key_variables[0], type(self).__name__
            raise ModelRefused(f"{line.name} has no key: set {variable}, or give {kind}(key=…)")
        if not header.is_carried(line.key):
            raise ModelRefused(f"{line.name} cannot be asked: its key holds what a header cannot carry")
        return StatefulSession(self.wire, line, self._model, start, self._asking.rest_seconds)

    def _reads(self, cursor: Any) -> bool:
        id = cursor.get(self.wire.word) if isinstance(cursor, dict) else None
        return isinstance(id, str) and bool(id)

    @property
    def _base_url(self) -> str:
        return (self._asking.base_url or os.environ.get(self.url_variable) or self.default_url).rstrip("/")

    @property
    def _line(self) -> Line:
        asking = self._asking
        given = (asking.key, *(os.environ.get(name) for name in self.key_variables), "")
        key = next(key for key in given if key is not None).strip()
        return Line(
            name=f"{self.provider}:{self._model}",
            base_url=self._base_url,
            headers={**self.wire.headers(key), **asking.headers},
            key=key,
            first_seconds=asking.first_seconds,
            stall_seconds=asking.stall_seconds,
        )
