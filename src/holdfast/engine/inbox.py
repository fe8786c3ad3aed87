"""A run's inbox as its drive knows it: every post is read once, however often it is looked for new ones."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.errors import Damaged
from holdfast.core.post import ANSWER, AnswerBody
from holdfast.store.value import Post

if TYPE_CHECKING:
    from holdfast.engine.drive import Drive


def answers(post: Post, step: str, shown: str) -> bool:
    """Say whether a post answers the question of a step, for what was shown."""
    if post.kind != ANSWER:
        return False
    body = msgspec.json.decode(post.body, type=AnswerBody)
    return body.step == step and body.shown == shown


class Inbox:
    """The posts that wait for a run; only the run itself takes them out, so what was read stays true."""

    def __init__(self, drive: "Drive") -> None:
        self._drive = drive
        self._waiting: dict[int, Post] = {}
        self._taken: dict[int, Post] = {}
        """Posts that ended a wait whose entry is being written."""
        self.read = 0

    async def look(self) -> Sequence[Post]:
        """Read what has come since the last look, and return all that wait, in order.

        Raises:
            Damaged: the inbox does not add up; the run is refused for it.
            Lost: the store does not answer.
        """
        drive = self._drive
        try:
            posts = await drive.answer(drive.store.inbox(drive.lease.row.run, after=self.read))
        except Damaged as damaged:
            raise drive.refuse(damaged) from None
        for post in posts:
            # Two looks at once bring the same posts; what the first brought may have been consumed meanwhile.
            if post.seq > self.read:
                self._waiting[post.seq] = post
                self.read = post.seq
        drive.journal.inbox_seq = max(drive.journal.inbox_seq, self.read)
        return list(self._waiting.values())

    @property
    def waiting(self) -> Iterable[Post]:
        """What was read, and nobody has taken."""
        return self._waiting.values()

    def take(self, post: Post) -> bool:
        """Keep a post for one wait; False when another has it."""
        if self._waiting.pop(post.seq, None) is None:
            return False
        self._taken[post.seq] = post
        return True

    def put_back(self, post: Post) -> None:
        """Let another wait take it."""
        if self._taken.pop(post.seq, None) is not None:
            self._waiting = dict(sorted([*self._waiting.items(), (post.seq, post)]))

    def forget(self, consumed: Iterable[int]) -> None:
        """Drop what an entry has consumed."""
        for seq in consumed:
            self._waiting.pop(seq, None)
            self._taken.pop(seq, None)
