"""Which runs a store keeps although it was asked to delete them."""

from holdfast.store.value import Kept, RunRow


def why_kept(row: RunRow, *, parent: bool, children: bool) -> Kept | None:
    """Return why a run must stay; `parent` and `children` say whether the run that spawned it, or one it did, is open.

    An ending is for ever, so what may go now may still go when the statement that removes it is reached.
    """
    if row.damage:
        return Kept.DAMAGED
    if not row.status.terminal:
        return Kept.OPEN
    if parent:
        return Kept.PARENT
    return Kept.CHILDREN if children else None
