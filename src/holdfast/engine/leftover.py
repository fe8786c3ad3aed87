"""What a turn was told and did not take in before it ended: the next turns of its conversation."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from holdfast.core.codec import decode_any, encode
from holdfast.core.errors import InvalidInput, InvalidValue
from holdfast.core.post import STEER, SteerBody
from holdfast.core.version import Need
from holdfast.store.start import Start, new_run
from holdfast.store.value import NewRun

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive

_MESSAGE: Final = "message"
"""What a turn is given, where nothing says how it takes it."""


def left_over(drive: "Drive") -> tuple[Sequence[int], Sequence[NewRun]]:
    """Return which words a turn that ends leaves, and the turns that they become; none is lost with the run."""
    row = drive.lease.row
    if row.conversation is None:
        return (), ()
    posts = [post for post in drive.waits.inbox.waiting if post.kind == STEER]
    words = [(post.seq, msgspec.json.decode(post.body, type=SteerBody)) for post in posts]
    left = [(seq, word) for seq, word in words if word.key is not None]
    return [seq for seq, _ in left], [_next_turn(drive, word) for _, word in left]


def _next_turn(drive: "Drive", word: SteerBody) -> NewRun:
    """Return the turn that takes a word as its message, by the argument that this one took its own by."""
    row, started = drive.lease.row, drive.origin.started
    assert started is not None
    given = decode_any(started.raw) if started.blob is None else None
    name = next(iter(given), _MESSAGE) if isinstance(given, dict) else _MESSAGE
    code = drive.function
    body = encode({name: word.text})
    if code is not None:
        # What its code cannot take is refused by the turn that is made of it, never by the one that ends.
        with suppress(InvalidInput, InvalidValue):
            body = code.encode_input(code.bind((word.text,)))
    start = Start(
        name=row.name, input=drive.secrets.redact(body), key=word.key, code=started.code, pin=row.pin,
        labels=dict(row.labels), conversation=row.conversation,
        budget=code.budget if code is not None else None,
    )  # fmt: skip
    new = new_run(start, tenant=row.tenant, now=drive.store.now())
    # It wants of its code what this one wanted.
    need = replace(Need.read(row.refused), refused=(), left=False)
    return replace(new, row=replace(new.row, refused=need.word))
