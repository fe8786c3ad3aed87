"""Which runs a filter wants, by their rows; the documentation of the SQL ones."""

from collections.abc import Callable

from holdfast.core.status import Status
from holdfast.store.value import RunFilter, RunRow


def wants(which: RunFilter, row: RunRow, posted: Callable[[str], bool]) -> bool:
    """Say whether a run is to be listed; `posted` says whether a post with that key has come for it."""
    status = Status.RUNNING if row.owner else row.status
    asked = ((which.status, status), (which.name, row.name), (which.key, row.key))
    return (
        all(want in (None, has) for want, has in asked)
        and (which.owner is None or (row.owner == which.owner and row.inbox_seq > row.seen_seq))
        and not (which.open and row.status.terminal)
        and (not which.unheard or (row.owner is None and row.is_controlled))
        and (which.posted is None or posted(which.posted))
        and which.conversation in (None, (row.tenant, row.conversation))
        and row.name not in which.but
        and which.parent in (None, row.parent)
        and which.labels.items() <= dict(row.labels).items()
        and (which.before is None or row.run < which.before)
        and row.run.replace("-", "").startswith(which.prefix)
    )
