"""A conversation whose turns a harness takes, held by a process that may be killed anywhere, and its judge."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

import holdfast as hf
from holdfast.harness import Ask
from holdfast.testing import ScriptedHarness, ScriptedProvider, call
from tests.chaos.judge import Broken
from tests.harness import twins

_SECONDS: Final = 60.0
_WORDS: Final = ("one", "two", "three")


@hf.tool(effect="repeat")
async def look(order: str) -> str:
    """Look an order up."""
    return f"order {order}: broken"


def _told(ask: Ask) -> str:
    return " | ".join(str(getattr(part, "text", part)) for message in ask.messages for part in message.parts)


SCRIPT: Final = ([call("look", order="42"), call("look", order="43")], _told, call("look", order="44"), _told, _told)
_KINDS: Final[dict[str, tuple[type[ScriptedHarness], dict[str, Any]]]] = {
    "doubting": (ScriptedHarness, {}),
    "keyed": (ScriptedHarness, {"keyed": True}),
    "finding": (ScriptedHarness, {"finds": True}),
    "recreating": (twins.Recreating, {}),
    "forking": (twins.Forking, {}),
}
SOUND: Final = ("doubting", "keyed", "finding")
"""What can be told of a creation whose id was lost: nothing, that it is one under its key, or where it is."""
BROKEN: Final = ("recreating", "forking")


@dataclass(frozen=True, slots=True)
class Held:
    """A conversation at its end: what was said, and the kinds of the entries of its turns."""

    history: Any
    entries: tuple[str, ...]


async def converse(store: str, folder: str, kind: str) -> Held:
    """Say all that is to be said, each once by its key, and return the conversation."""
    make, options = _KINDS[kind]
    harness = make(*SCRIPT, provider=ScriptedProvider(folder), **options)
    clerk = hf.Agent("clerk", harness=harness, tools=[look])
    async with hf.open(store, hf.App(clerk, version="1")) as runtime:
        chat = runtime.conversation("chat", clerk)
        for text in _WORDS:
            await (await chat.send(text, key=text)).result(timeout=_SECONDS)
        history = msgspec.to_builtins(await chat.history())
        runs = [await runtime.get(turn.id) for turn in await chat.turns()]
        entries = [event.type for run in runs async for event in run.events(follow=False)]
    return Held(history, tuple(entries))


def check(held: Held, unbroken: Held, folder: Path, kind: str) -> None:
    """Do nothing if every promise was kept.

    Raises:
        Broken: one was not.
    """
    provider, doubts = ScriptedProvider(folder), held.entries.count("StepDoubted")
    broken: list[str] = []
    if held.history != unbroken.history:
        broken.append(f"what was said differs: {held.history}")
    if provider.forks:
        broken.append(f"the chain forks behind {provider.forks}")
    if len(provider.created) > len(SCRIPT) + doubts:
        broken.append(f"{len(provider.created)} creations for {len(SCRIPT)} exchanges and {doubts} doubts")
    if kind in ("keyed", "finding") and len(provider.created) != len(SCRIPT):
        broken.append(f"{len(provider.created)} creations for {len(SCRIPT)} exchanges, though none can be lost")
    if kind == "keyed" and doubts:
        broken.append("a creation was doubted that could be sent again under its key")
    if held.entries.count("MessageAdded") != unbroken.entries.count("MessageAdded"):
        broken.append("a message is there twice, or not")
    if broken:
        raise Broken("\n".join(broken))
