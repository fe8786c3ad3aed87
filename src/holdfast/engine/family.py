"""What runs tell each other: a child its parent that it has ended, a parent its children that they shall end."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from holdfast.core.entry import RunFinished
from holdfast.core.ids import RunId
from holdfast.core.post import CANCEL, SETTLED, Control, Settlement
from holdfast.store.value import NewPost, RunRow

if TYPE_CHECKING:
    from holdfast.engine.budget import Purse


def cancel_post(run: RunId, reason: str) -> NewPost:
    """Return the post that asks for a run's end; asking twice is asking once."""
    return NewPost(run=run, kind=CANCEL, key=CANCEL, body=msgspec.json.encode(Control(reason=reason)), control=True)


def farewells(
    row: RunRow, children: Iterable[RunId], ending: RunFinished, purse: "Purse | None" = None,
    result: Raw | None = None,
) -> list[NewPost]:  # fmt: skip
    """Return what a run that ends tells its parent and the children that it leaves."""
    posts = [cancel_post(child, f"its parent {row.run} ended") for child in children]
    if row.parent is not None:
        body = Settlement(
            child=row.run, status=ending.status, value=ending.raw if result is None else result, blob=ending.blob,
            error=ending.error, reason=ending.reason, spent=purse.spent() if purse is not None else None,
            over=purse.over() if purse is not None else {}, unknown=purse.unknown() if purse is not None else [],
        )  # fmt: skip
        posts.append(NewPost(run=row.parent, kind=SETTLED, key=f"{SETTLED}/{row.run}", body=msgspec.json.encode(body)))
    return posts
