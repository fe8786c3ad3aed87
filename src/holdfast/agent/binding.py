"""From where a turn goes on: the cursor that its conversation keeps, checked, and the harness it is bound to."""

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.agent.harness import CursorInvalid, Harness, HarnessMismatch
from holdfast.core import entry as e
from holdfast.core.codec import NULL, encode
from holdfast.core.errors import Diverged
from holdfast.core.message import ASSISTANT, Message
from holdfast.engine.talk import Talk
from holdfast.store.value import ConversationRow


class Stand(Struct, frozen=True, omit_defaults=True):
    """Where a harness stands, or how what it began is found again; as it is in the journal."""

    v: int
    cursor: Any = None
    handle: Any = None
    how: str = "completed"
    """How the exchange that came to it has ended."""
    why: str = ""


class _Stored(Struct, frozen=True):
    """A stand as a conversation keeps it, where no journal's checksums protect it."""

    check: str
    stand: Raw


def stored(harness: str, stand: Stand) -> bytes:
    """Return a stand as a conversation keeps it."""
    body = encode(msgspec.to_builtins(stand), "a harness's cursor")
    return msgspec.json.encode(_Stored(_check(harness, body), Raw(body)))


def read_stored(harness: str, body: bytes) -> Stand:
    """Return what a conversation keeps.

    Raises:
        CursorInvalid: it is not as it was stored.
    """
    try:
        kept = msgspec.json.decode(body, type=_Stored)
        if kept.check != _check(harness, bytes(kept.stand)):
            raise CursorInvalid("it does not match its checksum", harness=harness, what="corrupt")
        return msgspec.json.decode(kept.stand, type=Stand)
    except msgspec.MsgspecError as error:
        raise CursorInvalid(str(error), harness=harness, what="corrupt") from error


def _check(harness: str, body: bytes) -> str:
    return blake2b(harness.encode() + b"\0" + body, digest_size=16).hexdigest()


def read_stand(harness: Harness, raw: Raw) -> Stand:
    """Return what a journal says of where a harness stands.

    Raises:
        CursorInvalid: this version of the harness cannot read it.
    """
    try:
        stand = msgspec.json.decode(raw, type=Stand) if bytes(raw) != bytes(NULL) else Stand(harness.version)
    except msgspec.MsgspecError as error:
        raise CursorInvalid(str(error), harness=harness.name, what="corrupt") from error
    return checked(harness, stand)


def checked(harness: Harness, stand: Stand) -> Stand:
    """Return a stand that this version of the harness can read.

    Raises:
        CursorInvalid: it was written by a newer one.
    """
    if stand.v > harness.version:
        why = f"it was written in version {stand.v} of its form, and this harness reads up to {harness.version}"
        raise CursorInvalid(why, harness=harness.name)
    return stand


async def find_stand(talk: Talk, harness: Harness, said: list[Message]) -> Stand | None:
    """Return from where a new turn goes on, behind what earlier ones `said`; None for one that has begun.

    Raises:
        HarnessMismatch: the conversation is bound to another harness, or to none.
        CursorInvalid: what it keeps cannot be read.
        Diverged: the run was begun without this harness; it is refused for that.
    """
    moved = talk.cursor
    if moved is not None:
        if moved.harness != harness.name:
            raise _diverged(talk, f"harness {moved.harness!r}", f"harness {harness.name!r}")
        return None
    if talk.next() is not None:
        raise _diverged(talk, "a turn without a harness", f"harness {harness.name!r}")
    row = await talk.conversation()
    if row is None or (row.harness is None and not any(message.role == ASSISTANT for message in said)):
        return Stand(harness.version)
    return _kept(row, harness)


async def current_stand(talk: Talk, harness: Harness) -> Stand:
    """Return where a turn that has begun goes on from, by its own journal.

    Raises:
        CursorInvalid: that cannot be read, or the conversation has gone on from there without this run: one that failed
            was tried again behind a later turn.
    """
    moved = talk.cursor
    assert moved is not None  # the turn began with it
    stand = read_stand(harness, moved.raw)
    row = await talk.conversation()
    if row is not None and _kept(row, harness) != stand:
        why = "a later turn of the conversation has gone on; send the message again, behind it"
        raise CursorInvalid(why, harness=harness.name, what="outdated")
    return stand


def _kept(row: ConversationRow, harness: Harness) -> Stand:
    if row.harness != harness.name:
        raise HarnessMismatch(conversation=row.conversation, bound=row.harness, harness=harness.name)
    if row.cursor is None:
        raise CursorInvalid("it is gone", harness=harness.name, what="corrupt")
    return checked(harness, read_stored(harness.name, row.cursor))


async def refuse_bound(talk: Talk) -> None:
    """Refuse to take a turn with a model where a harness has taken the ones before it.

    Raises:
        HarnessMismatch: the conversation is bound to a harness.
        Diverged: the run was begun with one; it is refused for that.
    """
    if talk.cursor is not None:
        raise _diverged(talk, f"harness {talk.cursor.harness!r}", "a model")
    if talk.next() is None and (row := await talk.conversation()) is not None and row.harness is not None:
        raise HarnessMismatch(conversation=row.conversation, bound=row.harness, harness=None)


def moved_to(harness: str, stand: Stand) -> e.CursorMoved:
    """Return the entry that a turn begins with."""
    return e.CursorMoved(harness=harness, raw=Raw(encode(msgspec.to_builtins(stand), "a harness's cursor")))


def _diverged(talk: Talk, recorded: str, asked: str) -> Diverged:
    return talk.drive.refuse(
        Diverged(seq=talk.cursor.seq if talk.cursor is not None else 0, recorded=recorded, asked=asked)
    )
