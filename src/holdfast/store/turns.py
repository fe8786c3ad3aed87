"""Whose turn it is in the conversations of a store in memory."""

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core.status import Status
from holdfast.store.value import ConversationRow, RunRow

Id = tuple[str, str]
"""A tenant and the name of a conversation."""
After = Callable[[ConversationRow], RunRow | None]
"""Finds the first open turn of a conversation behind those that are over."""


def is_over(status: Status) -> bool:
    """Say whether a turn that came to this lets the next one begin."""
    return status.terminal or status is Status.QUARANTINED


class Turns:
    """The conversations of a store; of each at most one turn is active."""

    def __init__(self, after: After) -> None:
        self.rows: dict[Id, ConversationRow] = {}
        self._after = after

    def twin(self, after: After) -> "Turns":
        """Return another that stands as this one does."""
        twin = Turns(after)
        twin.rows = dict(self.rows)
        return twin

    def of(self, row: RunRow) -> ConversationRow:
        """Return the conversation of a turn."""
        known = (row.tenant, row.conversation or "")
        return self.rows.get(known) or ConversationRow(tenant=known[0], conversation=known[1])

    def put(self, row: ConversationRow) -> None:
        """Keep how a conversation stands."""
        self.rows[row.tenant, row.conversation] = row

    def is_free(self, row: RunRow) -> bool:
        """Say whether no turn of its conversation is open."""
        talk = self.of(row)
        return talk.active is None and self._after(talk) is None

    def take(self, row: RunRow) -> RunRow:
        """Return a new run as the next turn of its conversation: active at once if none is and none waits."""
        talk, free = self.of(row), self.is_free(row)
        turn = talk.last_turn + 1
        known = replace(talk, last_turn=turn)
        self.put(replace(known, active=row.run, over=turn - 1) if free else known)
        return replace(row, turn=turn, behind=not free)

    def is_active(self, row: RunRow) -> bool:
        """Say whether it is this run's turn."""
        return self.of(row).active == row.run

    def close(self, row: RunRow) -> None:
        """Let a turn that has ended or was set aside be over, if it was the active one."""
        talk = self.of(row)
        if talk.active == row.run:
            turn = row.turn or 0
            reached = max(talk.reached, turn) if row.last_seq > 1 else talk.reached
            self.put(replace(talk, active=None, over=max(talk.over, turn), reached=reached))

    def call(self) -> list[RunRow]:
        """Make active the next turn of every conversation that has none, and return them."""
        called = []
        for talk in list(self.rows.values()):
            if talk.active is None and talk.over < talk.last_turn:
                found = self._after(talk)
                active = found.run if found is not None else None
                over = (found.turn or 1) - 1 if found is not None else talk.last_turn
                self.put(replace(talk, active=active, over=over))
                called += [replace(found, behind=False)] if found is not None else []
        return called

    def may_return(self, row: RunRow) -> bool:
        """Say whether a turn that was set aside may go on: none is active, and no later one has written anything."""
        talk = self.of(row)
        return row.status is Status.QUARANTINED and talk.active is None and talk.reached <= (row.turn or 0)

    def returned(self, row: RunRow) -> RunRow | None:
        """Make a turn that was set aside active again, if it may go on."""
        if not self.may_return(row):
            return None
        self.put(replace(self.of(row), active=row.run))
        return replace(row, behind=False)

    def annotate(self, tenant: str, conversation: str, metadata: bytes) -> None:
        """Keep what a caller says of a conversation."""
        known = self.rows.get((tenant, conversation)) or ConversationRow(tenant=tenant, conversation=conversation)
        self.put(replace(known, metadata=metadata))
