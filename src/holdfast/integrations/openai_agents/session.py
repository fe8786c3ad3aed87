"""A session of the OpenAI Agents SDK, kept in a Holdfast store: a conversation whose turns are its changes."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from agents import SessionSettings, TResponseInputItem

import holdfast as hf
from holdfast.core.ids import RunId
from holdfast.integrations.relay import current_relay


@hf.durable(name="openai-agents.session")
async def session_change(ctx: hf.Context, change: str) -> None:
    """Stand for one change of a session; that it was recorded is all there is to do."""


class HoldfastSession:
    """The history of one conversation, in the runtime's store, as the SDK's `Session` protocol wants it.

    What a call changed is on disk when it returns. Any number of processes may use one session at a time: its changes
    have one order, and each `pop_item` takes another item. Inside of a durable run each change happens once, however
    often the run is resumed.
    """

    def __init__(
        self,
        session_id: str,
        runtime: hf.Runtime,
        *,
        session_settings: SessionSettings | Mapping[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        settings = SessionSettings(**session_settings) if isinstance(session_settings, Mapping) else session_settings
        self.session_settings: SessionSettings | None = settings or SessionSettings()
        self._runtime = runtime
        self._conversation = runtime.conversation(f"openai-agents/{session_id}", session_change)
        self._known: list[tuple[int, str]] = []
        """The changes that were read so far, by their place."""
        self._reading = asyncio.Lock()

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return what was said, the oldest first; of more than `limit` items the latest."""
        items = _fold(await self._until(await self._last_place()))
        most = limit if limit is not None or self.session_settings is None else self.session_settings.limit
        if most is None or most < 0:  # as the SDK's own session in SQLite takes it
            return items
        return items[-most:] if most else []

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end, all of them or none."""
        if items:
            await self._change({"add": list(items)})

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the latest item away and return it; None where there is none."""
        place = await self._change({"pop": True})
        before = _fold(await self._until(place - 1))
        return before[-1] if before else None

    async def clear_session(self) -> None:
        """Forget every item."""
        await self._change({"clear": True})

    async def _change(self, change: Mapping[str, Any]) -> int:
        """Record a change, and return its place."""
        text = json.dumps(change)
        relay = current_relay()
        if relay is None:
            return await self._send(text, str(uuid4()))

        async def perform(step: hf.Step[Any]) -> int:
            return await self._send(text, step.idempotency_key)

        place: int = await relay.step("session.change", perform, effect=hf.Effect.KEYED, on_input_change="keep")
        return place

    async def _send(self, text: str, key: str) -> int:
        run = await self._conversation.send(text, key=("openai-agents", self.session_id, key))
        place = (await run.info()).turn
        assert place is not None
        return place

    async def _last_place(self) -> int:
        """Return the place of the latest change; in a durable run, of the latest when it was first asked for."""
        relay = current_relay()
        if relay is None:
            return await self._read()

        async def perform(step: hf.Step[Any]) -> int:
            return await self._read()

        place: int = await relay.step("session.read", perform)
        return place

    async def _until(self, place: int) -> list[str]:
        """Return the changes up to a place."""
        if not self._known or self._known[-1][0] < place:
            await self._read()
        return [change for number, change in self._known if number <= place]

    async def _read(self) -> int:
        """Read the changes that are not known yet, and return the place of the latest."""
        async with self._reading:
            after = self._known[-1][0] if self._known else 0
            for turn in await self._conversation.turns(after=after):
                recorded = await self._runtime.client.info(RunId(turn.id))
                self._known.append((turn.turn or 0, recorded.input["change"]))
            return self._known[-1][0] if self._known else 0


def _fold(changes: Iterable[str]) -> list[TResponseInputItem]:
    """Return the items that changes leave; each time anew, since the SDK may alter what it is given."""
    items: list[TResponseInputItem] = []
    for change in map(json.loads, changes):
        if "add" in change:
            items += change["add"]
        elif "clear" in change:
            items = []
        elif items:
            items.pop()
    return items
