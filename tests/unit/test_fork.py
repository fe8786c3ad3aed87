"""What hangs loose where a run is forked, and what a fork's first entry makes of the state."""

from collections.abc import Sequence

import pytest

from holdfast.core import entry as e
from holdfast.core.checksum import ZERO, Share, StoredEntry, check_chain, checksum, owner_of
from holdfast.core.errors import Damaged
from holdfast.core.fold import RunState, fold
from holdfast.core.fork import History, LooseEnds
from holdfast.core.ids import RunId, id_bytes
from holdfast.core.status import Effect, Status
from holdfast.journal import replay as r

BASE, FORK = RunId("0199f3a2-7c41-7d53-9a0e-5f1c2b7a9e10"), RunId("0199f3a2-7c41-7d53-9a0e-5f1c2b7a9e11")
ERROR = e.ErrorInfo(type="ValueError", message="no")
STARTED = e.RunStarted(name="tale", tenant="default", digest="d", seed="00" * 16, root=BASE)


def begun(step: str, effect: Effect = Effect.ONCE, **rest: object) -> e.StepStarted:
    """Return a step's intent."""
    return e.StepStarted(step=step, digest="d", effect=effect, **rest)  # type: ignore[arg-type]


def done(step: str) -> e.StepCompleted:
    """Return a step's result."""
    return e.StepCompleted(step=step, digest="d")


def failed(step: str, **rest: object) -> e.StepFailed:
    """Return a step's failure."""
    return e.StepFailed(step=step, digest="d", error=ERROR, **rest)  # type: ignore[arg-type]


def numbered(*entries: e.Entry) -> list[e.Entry]:
    """Return a journal that begins with a start and goes on with these."""
    fields = [{name: getattr(one, name) for name in one.__struct_fields__} for one in (STARTED, *entries)]
    kinds = [type(one) for one in (STARTED, *entries)]
    return [kind(**{**of, "seq": seq}) for seq, (kind, of) in enumerate(zip(kinds, fields, strict=True), start=1)]


def history(*entries: e.Entry) -> History:
    """Return what these entries add up to."""
    told = History()
    for entry in numbered(*entries):
        told.take(entry)
    return told


def forked(reopened: Sequence[str] = (), doubted: Sequence[str] = (), children: Sequence[str] = ()) -> e.RunForked:
    """Return a fork's first entry."""
    return e.RunForked(
        base=BASE, base_seq=1, base_checksum="00" * 16, seed="11" * 16, reopened=list(reopened),
        doubted=list(doubted), children=list(children),
    )  # fmt: skip


def test_what_has_no_end_hangs_loose() -> None:
    """Once steps under way, questions and children; keyed steps and waits declare by themselves how they go on."""
    loose = history(
        begun("0/pay#1"), begun("0/hold#1", Effect.KEYED), begun("0/sleep#1", Effect.REPEAT, waits=["sleep"]),
        e.QuestionAsked(step="0/ask#1", text="?", shown="s"), done("0/pay#0"),
        e.ChildSpawned(step="0/child#1", child=FORK, name="c", digest="d"),
    ).at_fork()  # fmt: skip
    assert loose == LooseEnds(doubted=["0/pay#1"], questions=["0/ask#1"], children=["0/child#1"])


@pytest.mark.parametrize(
    ("entries", "reopened", "doubted"),
    [
        ([failed("0/a#1")], ["0/a#1"], []),
        ([failed("0/a#1", cancelled=True)], ["0/a#1"], []),
        ([failed("0/a#1", retry_at=5)], [], []),
        ([failed("0/a#1"), done("0/b#1")], [], []),
        ([failed("0/gather#1.1/a#1"), done("0/gather#1.2/b#1")], ["0/gather#1.1/a#1"], []),
        ([failed("0/gather#1.1/a#1"), done("0/gather#1.1/b#1")], [], []),
        ([failed("0/gather#1.1/a#1"), done("0/gather#1.2/b#1"), done("0/c#1")], [], []),
        ([failed("0/a#1"), e.RunContinued(generation=1)], [], []),
        ([begun("0/a#1"), e.StepDoubted(step="0/a#1", why="crash")], [], []),
        ([begun("0/a#1"), e.StepDoubted(step="0/a#1", why="cancelled")], [], ["0/a#1"]),
        ([begun("0/a#1"), e.StepResolved(step="0/a#1", how="policy", outcome="unknown")], [], ["0/a#1"]),
        ([begun("0/a#1"), e.StepResolved(step="0/a#1", how="person", outcome="not_done")], [], []),
        ([e.ChildSpawned(step="0/c#1", child=FORK, name="c", digest="d")], ["0/c#1"], []),
        (
            [
                e.ChildSpawned(step="0/c#1", child=FORK, name="c", digest="d"), done("0/b#1"),
                e.ChildSettled(step="0/c#1", child=FORK, status=Status.FAILED),
            ],
            ["0/c#1"], [],
        ),
        ([failed("0/a#1"), forked(reopened=["0/a#1"]), failed("0/a#1", attempt=2)], ["0/a#1"], []),
    ],
)  # fmt: skip
def test_a_retry_reopens_what_failed_and_nothing_followed(
    entries: list[e.Entry], reopened: list[str], doubted: list[str]
) -> None:
    """A failure that the code went on from is part of its way; a doubt that raised is a doubt again."""
    loose = history(*entries).at_retry()
    assert (loose.reopened, loose.doubted) == (reopened, doubted)


def test_a_forks_state_has_no_lease_wait_question_or_child_of_its_base() -> None:
    """The fence begins anew, what was doubted is open, and what is reopened may begin again."""
    state = RunState()
    for entry in numbered(
        e.RunResumed(worker="w", fence=7, attempt=3, why="claimed"), begun("0/pay#1"),
        begun("0/sleep#1", Effect.REPEAT, waits=["sleep"]), e.QuestionAsked(step="0/ask#1", text="?", shown="s"),
        e.ChildSpawned(step="0/child#1", child=FORK, name="c", digest="d"),
        e.RunParked(status=Status.PAUSED, reason="paused"), forked(doubted=["0/pay#1", "0/given#1"]),
        e.RunResumed(worker="w", fence=2, attempt=2, why="claimed"),
        begun("0/sleep#1", Effect.REPEAT, waits=["sleep"]),
    ):  # fmt: skip
        state = fold(state, entry)
    assert (state.seed, state.fence, state.status, state.questions, state.children) == ("11" * 16, 2, "queued", {}, {})
    assert {step: one.doubted for step, one in state.open.items()} == {
        "0/pay#1": True, "0/given#1": True, "0/sleep#1": False
    }  # fmt: skip


def test_replay_gives_out_what_the_fork_is_to_do_with_what_hung_loose() -> None:
    """Another attempt, a word to wait for, a child from its past; what the base waited for was never come to."""
    replay = r.replay_of(
        numbered(
            failed("0/a#1"),
            begun("0/b#1"),
            e.StepResolved(step="0/b#1", how="policy", outcome="unknown"),
            e.ChildSpawned(step="0/c#1", child=FORK, name="c", digest="d"),
            e.ChildSpawned(step="0/d#1", child=FORK, name="c", digest="d"),
            begun("0/sleep#1", Effect.REPEAT, waits=["sleep"], due_at=9),
            begun("0/receive#1", Effect.REPEAT, waits=["signal x"], due_at=9),
            forked(reopened=["0/a#1", "0/c#1"], doubted=["0/b#1"], children=["0/d#1"]),
        )
    )
    assert replay.begun_at("0/a#1") == 2
    assert replay.ask("0", "0/a#1", "d") == r.Reopened(0)
    doubt = replay.ask("0", "0/b#1", "d")
    assert isinstance(doubt, r.InQuestion)
    assert doubt.asked_again
    assert replay.ask("0", "0/c#1", "d") == r.Anew(FORK)
    assert replay.ask("0", "0/d#1", "d") == r.Anew()
    assert replay.ask("0", "0/sleep#1", "d") == r.Waiting(9, timed=True)
    assert replay.next_at("0") is None
    assert replay.ask("0", "0/receive#1", "another") is r.FRESH
    assert not replay.replaying


def test_a_shared_entry_is_bound_to_the_run_that_wrote_it() -> None:
    """The chain of a fork holds with its shares, and not without them or with others."""
    rows: list[StoredEntry] = []
    for seq, owner in enumerate((BASE, BASE, FORK), start=1):
        previous = rows[-1].checksum if rows else ZERO
        made = checksum(id_bytes(owner), seq, 0, 1, "Emitted", 0, previous, b"{}")
        rows.append(StoredEntry(seq, "Emitted", 1, 0, 0, b"{}", made))
    shares = [Share(2, BASE)]
    assert [owner_of(FORK, shares, seq) for seq in (1, 2, 3)] == [BASE, BASE, FORK]
    assert check_chain(FORK, ZERO, rows, 0, shares) == rows[-1].checksum
    assert check_chain(FORK, rows[1].checksum, rows[2:], 2) == rows[-1].checksum
    for wrong in ([], [Share(1, BASE)], [Share(3, BASE)], [Share(2, FORK)]):
        with pytest.raises(Damaged, match="entry"):
            check_chain(FORK, ZERO, rows, 0, wrong)
