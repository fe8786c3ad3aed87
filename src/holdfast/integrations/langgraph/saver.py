"""LangGraph's checkpointer on a Holdfast store."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.core import limits
from holdfast.core.errors import InvalidInput, Misuse, StoreClosed
from holdfast.core.ids import TENANT, checked_text
from holdfast.integrations.langgraph.coding import Allowed, Coder, checked_serializer, strict_serializer
from holdfast.integrations.langgraph.reading import Found, Loaded, Reader
from holdfast.integrations.langgraph.removing import Remover
from holdfast.integrations.langgraph.row import Place, checked_id
from holdfast.integrations.langgraph.thread import LoopThread
from holdfast.integrations.langgraph.writing import NewCheckpoint, Writer
from holdfast.runtime import DEFAULT_STORE, open_store


class _Latest(str):
    """The id of a checkpoint that was read as the latest one: what continues it must find it so still.

    LangGraph hands the config that it read back with what it puts, so the id itself can say how it was come by.
    """

    __slots__ = ()


class HoldfastSaver(BaseCheckpointSaver[int]):
    """Keeps a graph's threads in a Holdfast store, each checkpoint as what it adds to its parent.

    Plain and async methods may be used side by side, from any thread and any event loop. What a method returned is on
    disk. Of two who continue one thread at the same time, the second is refused with a `Conflict`.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        tenant: str = TENANT,
        allow: Iterable[Allowed] = (),
        serde: SerializerProtocol | None = None,
    ) -> None:
        """Open the store at an address: `sqlite:///file.db` or `postgresql://…`; else that of HOLDFAST_STORE.

        `allow` names the classes of your own that a state may hold, beside LangGraph's messages and plain data: no
        other is ever built from a row. A `serde` of your own answers for that itself.
        """
        if serde is not None and allow:
            raise Misuse("give allow= or serde=: a serializer of your own says itself what it builds")
        super().__init__(serde=checked_serializer(serde) if serde is not None else strict_serializer(allow))
        self._tenant = checked_text("the tenant", tenant, limits.TENANT_BYTES)
        self._address = store or os.environ.get("HOLDFAST_STORE") or DEFAULT_STORE
        self._loop = LoopThread("holdfast langgraph")
        self._is_open = [True]
        """Shared with the clones that LangGraph makes of a saver."""
        try:
            self._store = self._loop.wait(open_store(self._address))
        except BaseException:
            self._loop.close()
            raise
        self._reader = Reader(self._store.shelves, self._tenant)
        self._writer = Writer(self._reader)
        self._remover = Remover(self._reader, self._writer)

    def close(self) -> None:
        """Close the store. What was put is on disk whether or not this is called."""
        if self._is_open.pop() if self._is_open else False:
            self._loop.wait(self._store.close())
            self._loop.close()

    def __enter__(self) -> "HoldfastSaver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "HoldfastSaver":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def _ran(self) -> LoopThread:
        if not self._is_open:
            raise StoreClosed(self._address)
        return self._loop

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._ran.wait(self._get(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._ran.until(self._get(config))

    async def _get(self, config: RunnableConfig) -> CheckpointTuple | None:
        place, checkpoint = _where(config)
        loaded = await self._reader.load(place, checkpoint)
        if loaded is None:
            if checkpoint is None:
                self._writer.saw_nothing(place)
            return None
        read = _tuple(loaded, Coder(self.serde))
        self._writer.remember(loaded.found, read.checkpoint["channel_versions"])
        if checkpoint is None:
            read.config["configurable"]["checkpoint_id"] = _Latest(loaded.found.checkpoint)
        else:
            self._writer.goes_back(place, checkpoint)
        return read

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        found = self._list(config, filter, before, limit)
        try:
            while (each := self._ran.wait(_next(found))) is not None:
                yield each
        finally:
            self._loop.wait(found.aclose())

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self._list(config, filter, before, limit)
        try:
            while (each := await self._ran.until(_next(found))) is not None:
                yield each
        finally:
            await self._loop.until(found.aclose())

    async def _list(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints that are asked for, the newest first; each is read when it is wanted."""
        wanted = config["configurable"] if config is not None else {}
        ns, below = wanted.get("checkpoint_ns"), before["configurable"].get("checkpoint_id") if before else None
        coder, given = Coder(self.serde), 0
        rows = self._reader.list(
            str(wanted["thread_id"]) if "thread_id" in wanted else None,
            checked_id("the checkpoint_ns", ns) if ns is not None else None,
            checkpoint=wanted.get("checkpoint_id"),
            before=below,
            limit=limit if not filter else None,
        )
        async for found in rows:
            if limit is not None and given >= limit:
                return
            if not filter or _matches(found, filter, coder):
                loaded = await self._reader.complete(found)
                if loaded is not None:
                    given += 1
                    yield _tuple(loaded, coder)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._ran.wait(self._history(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._ran.until(self._history(config, channels))

    async def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        coder, histories = Coder(self.serde), dict[str, DeltaChannelHistory]()
        for channel, past in (await self._reader.past(*_where(config), channels)).items():
            writes = [(row.task, channel, coder.loads(channel, row.kind, row.value)) for row in past.writes]
            histories[channel] = {"writes": writes}
            if past.seed is not None:
                histories[channel]["seed"] = coder.decode(channel, past.seed)
        return histories

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._ran.wait(self._put(config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._ran.until(self._put(config, checkpoint, metadata, new_versions))

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        place, parent = _where(config)
        ident = checked_id("the checkpoint's id", checkpoint["id"])
        about = get_checkpoint_metadata(config, metadata)
        follows = isinstance(config["configurable"].get("checkpoint_id"), _Latest)
        new = NewCheckpoint(place, ident, parent, dict(checkpoint), dict(about), new_versions, follows)
        await self._writer.put(new, Coder(self.serde))
        return _config(place, ident)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._ran.wait(self._put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._ran.until(self._put_writes(config, writes, task_id, task_path))

    async def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        place, checkpoint = _where(config)
        if checkpoint is None:
            raise InvalidInput("writes belong to a checkpoint, and the config names none")
        await self._writer.put_writes(place, checkpoint, writes, Coder(self.serde), task_id, task_path)

    # Removing

    def delete_thread(self, thread_id: str) -> None:
        self._ran.wait(self._remover.delete_thread(str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._ran.until(self._remover.delete_thread(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._ran.wait(self._delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._ran.until(self._delete_for_runs(run_ids))

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        for run in run_ids:
            await self._remover.delete_run(str(run))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._ran.wait(self._remover.copy_thread(str(source_thread_id), str(target_thread_id)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._ran.until(self._remover.copy_thread(str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._ran.wait(self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._ran.until(self._prune(thread_ids, strategy))

    async def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        ways = {"keep_latest": self._remover.keep_latest, "delete": self._remover.delete_thread}
        if strategy not in ways:
            raise InvalidInput(f"there is no way to prune called {strategy!r}: {', '.join(ways)}")
        for thread in thread_ids:
            await ways[strategy](str(thread))


def _where(config: RunnableConfig) -> tuple[Place, str | None]:
    """Return the place that a config names, and the checkpoint in it."""
    named = config.get("configurable", {})
    if named.get("thread_id") is None:
        raise InvalidInput('the config names no thread: {"configurable": {"thread_id": "…"}}')
    place = Place(str(named["thread_id"]), checked_id("the checkpoint_ns", named.get("checkpoint_ns") or ""))
    checkpoint = named.get("checkpoint_id")
    return place, str(checked_id("the checkpoint_id", checkpoint)) if checkpoint else None


def _config(place: Place, checkpoint: str) -> RunnableConfig:
    return {"configurable": {"thread_id": place.thread, "checkpoint_ns": place.ns, "checkpoint_id": checkpoint}}


def _tuple(loaded: Loaded, coder: Coder) -> CheckpointTuple:
    place, ident, row = loaded.found
    what = f"thread {place.thread!r}"
    checkpoint = coder.loads(what, *row.checkpoint)
    checkpoint["channel_values"] = {name: coder.decode(what, value) for name, value in loaded.values.items()}
    return CheckpointTuple(
        _config(place, ident),
        checkpoint,
        coder.loads(what, *row.metadata),
        _config(place, row.parent) if row.parent is not None else None,
        [(write.task, write.channel, coder.loads(what, write.kind, write.value)) for write in loaded.writes],
    )


def _matches(found: Found, filter: Mapping[str, Any], coder: Coder) -> bool:
    metadata = coder.loads(f"thread {found.place.thread!r}", *found.row.metadata)
    return all(metadata.get(name) == value for name, value in filter.items())


async def _next(found: AsyncIterator[CheckpointTuple]) -> CheckpointTuple | None:
    return await anext(found, None)
