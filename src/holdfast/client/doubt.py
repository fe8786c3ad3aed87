"""Ending a step's doubt by a person's word."""

from typing import Any

import msgspec
from msgspec import Raw

from holdfast.client.reading import read_state
from holdfast.core.codec import NULL, encode
from holdfast.core.errors import Conflict, NotFound
from holdfast.core.ids import RunId
from holdfast.core.status import NotDone
from holdfast.store.protocol import Store
from holdfast.store.value import NewPost


async def resolve_doubt(
    store: Store, run: RunId, step: str, value: Any | NotDone, *, by: str | None, note: str | None
) -> None:
    """Post that a step in doubt was done, with what came of it, or was not.

    Raises:
        NotFound: there is no such doubt.
        Conflict: it was ended before, or nobody waits for its end.
    """
    state = await read_state(store, run)
    known = state.open.get(step)
    if known is None or not known.doubted:
        raise NotFound(f"a step in doubt called {step!r} in run {run}")
    if known.left:
        raise Conflict(
            f"step {step!r} was cancelled by the run's own code, which has gone on without it",
            run=run,
            hint="Nothing waits for a word about it.",
        )
    done = not isinstance(value, NotDone)
    word = {
        "step": step,
        "done": done,
        "value": Raw(encode(value, "the value")) if done else NULL,
        "by": by,
        "note": note,
    }
    # One word per doubt: its entry is part of the key, so that a later doubt of the same step can be ended too.
    key = f"resolve/{step}/{known.doubt_seq}"
    posted = await store.post(NewPost(run=run, kind="resolve", key=key, body=msgspec.json.encode(word)))
    if posted.outcome != "accepted":
        raise Conflict(
            f"the doubt of step {step!r} was ended before", run=run, hint="`holdfast show RUN` tells by whom."
        )
