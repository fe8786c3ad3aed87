"""The signals that wait in a run's inbox."""

from collections.abc import Sequence

import msgspec

from holdfast.client.protocol import SignalInfo
from holdfast.client.standing import as_time
from holdfast.core.codec import decode_any
from holdfast.core.post import SIGNAL, SignalBody
from holdfast.store.protocol import Store
from holdfast.store.value import Post, RunRow


async def list_signals(store: Store, row: RunRow) -> Sequence[SignalInfo]:
    """Return the signals that were sent to a run and that it has not received, in order."""
    if not row.inbox_seq:
        return []
    return [_told(post) for post in await store.inbox(row.run) if post.kind == SIGNAL]


def _told(post: Post) -> SignalInfo:
    body = msgspec.json.decode(post.body, type=SignalBody)
    return SignalInfo(name=body.name, value=decode_any(body.value), by=body.by, sent_at=as_time(post.at))
