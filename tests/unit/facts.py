"""One entry of every kind with each of its fields set, and one with only those that must be."""

from typing import Any, Final

from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.status import Effect, Status

RUN: Final = "0192f0c1-2b3c-7d4e-8f50-617283940a1b"
OTHER: Final = "0192f0c1-2b3c-7d4e-8f50-617283940a1c"
SEED: Final = "000102030405060708090a0b0c0d0e0f"
DIGEST: Final = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
AT: Final = 1_767_225_600_000_000
BLOB: Final = e.BlobRef(DIGEST, 70_000)
ERROR: Final = e.ErrorInfo(type="ValueError", message="no é", code="step_error", traceback="line 1\nline 2")
VALUE: Final = Raw(b'{"a":[1,2.5,null,true,"\xc3\xa9"]}')

FULL: Final[tuple[e.Entry, ...]] = (
    e.RunStarted(
        name="onboard", tenant="acme", digest=DIGEST, seed=SEED, root=RUN, key="onboard/acme", code="2026.11", pin=True,
        labels={"team": "blue"}, parent=OTHER, conversation="chat", turn=3, budget={"tokens": 100}, due_at=AT + 1,
        raw=VALUE, blob=BLOB,
    ),
    e.RunForked(
        base=OTHER, base_seq=17, base_checksum="00" * 16, seed=SEED, grant={"usd": 5}, reopened=["0/a#1"],
        doubted=["0/b#1"], children=[OTHER], questions=["0/ask#1"],
    ),
    e.RunResumed(worker=OTHER, fence=4, attempt=2, why="claimed", code="2026.11"),
    e.StepStarted(
        step="0/pay#1", digest=DIGEST, effect=Effect.ONCE, attempt=2, timeout=30_000_000, due_at=AT, waits=["paid"],
        reserved={"tokens": 10}, provider="resp_1",
    ),
    e.StepCompleted(step="0/pay#1", digest=DIGEST, attempt=2, usage={"tokens": 7, "usd": None}, raw=VALUE, blob=BLOB),
    e.StepFailed(
        step="0/pay#1", digest=DIGEST, error=ERROR, attempt=2, cancelled=True, retry_at=AT, usage={"tokens": None}
    ),
    e.StepDoubted(step="0/pay#1", why="crash", attempt=2, error=ERROR),
    e.StepResolved(
        step="0/pay#1", how="person", outcome="done", by="ann", note="seen it", raw=VALUE, blob=BLOB
    ),
    e.MessageAdded(role="assistant", step="0/model#1", native=Raw(b'{"signature":"x"}'), raw=VALUE, blob=BLOB),
    e.SignalReceived(step="0/receive#1", name="paid", post=3, by="bank", raw=VALUE, blob=BLOB),
    e.QuestionAsked(step="0/ask#1", text="Send it?", shown=DIGEST, expires_at=AT, raw=VALUE, blob=BLOB),
    e.QuestionAnswered(
        step="0/ask#1", yes=True, shown=DIGEST, by="ann", note="fine", expired=True, raw=VALUE, blob=BLOB
    ),
    e.ChildSpawned(step="0/spawn#1", child=OTHER, name="clerk", digest=DIGEST, grant={"usd": 5}),
    e.ChildSettled(
        step="0/spawn#1", child=OTHER, status=Status.FAILED, error=ERROR, spent={"usd": 3}, raw=VALUE, blob=BLOB
    ),
    e.CursorMoved(harness="native", step="0/turn#1", raw=VALUE, blob=BLOB),
    e.BudgetChanged(
        moves=[e.BudgetMove(channel="usd", total=5, reserved=-2, spent=1, unknown=True)], why="settled", step="0/t#1"
    ),
    e.SpecAdopted(code="2026.12", before="2026.11", difference="one tool more"),
    e.ValueTaken(step="0/now#1", name="now", raw=Raw(b"1767225600000000"), blob=BLOB),
    e.RunContinued(generation=1, raw=VALUE, blob=BLOB),
    e.HistoryCompacted(up_to=40, raw=VALUE, blob=BLOB),
    e.WorkspaceSaved(driver="btrfs", snapshot="s2", before="s1"),
    e.Emitted(step="0/emit#1", name="emit", raw=VALUE, blob=BLOB),
    e.RunParked(
        status=Status.WAITING, reason="retry", detail="in a minute", step="0/pay#1", due_at=AT, code="2026.11"
    ),
    e.RunFinished(status=Status.FAILED, reason="ValueError: no é", error=ERROR, raw=VALUE, blob=BLOB),
)  # fmt: skip

LEAST: Final[tuple[e.Entry, ...]] = (
    e.RunStarted(name="onboard", tenant="default", digest=DIGEST, seed=SEED, root=RUN),
    e.RunForked(base=OTHER, base_seq=17, base_checksum="00" * 16, seed=SEED),
    e.RunResumed(worker=OTHER, fence=4, attempt=2, why="claimed"),
    e.StepStarted(step="0/pay#1", digest=DIGEST, effect=Effect.KEYED),
    e.StepCompleted(step="0/pay#1", digest=DIGEST),
    e.StepFailed(step="0/pay#1", digest=DIGEST, error=e.ErrorInfo(type="ValueError", message="")),
    e.StepDoubted(step="0/pay#1", why="crash"),
    e.StepResolved(step="0/pay#1", how="policy", outcome="unknown"),
    e.MessageAdded(role="user"),
    e.SignalReceived(step="0/receive#1", name="paid", post=3),
    e.QuestionAsked(step="0/ask#1", text="Send it?", shown=DIGEST),
    e.QuestionAnswered(step="0/ask#1", yes=False, shown=DIGEST),
    e.ChildSpawned(step="0/spawn#1", child=OTHER, name="clerk", digest=DIGEST),
    e.ChildSettled(step="0/spawn#1", child=OTHER, status=Status.COMPLETED),
    e.CursorMoved(harness="native"),
    e.BudgetChanged(moves=[], why="nothing"),
    e.SpecAdopted(code="2026.12", before="2026.11"),
    e.ValueTaken(step="0/now#1", name="now"),
    e.RunContinued(generation=1),
    e.HistoryCompacted(up_to=40),
    e.WorkspaceSaved(driver="btrfs", snapshot="s2"),
    e.Emitted(step="0/emit#1", name="emit"),
    e.RunParked(status=Status.PAUSED, reason="asked"),
    e.RunFinished(status=Status.COMPLETED),
)


def intent(step: str = "0/pay#1", *, attempt: int = 1, timeout: int | None = 9) -> e.Entry:
    """Return the intent of a `once` step."""
    return e.StepStarted(step=step, digest=DIGEST, effect=Effect.ONCE, attempt=attempt, timeout=timeout)


def completed(step: str = "0/pay#1", value: bytes = b"1") -> e.Entry:
    """Return a step's result."""
    return e.StepCompleted(step=step, digest=DIGEST, raw=Raw(value))


def failed(step: str = "0/pay#1", **fields: Any) -> e.Entry:
    """Return a step's failure."""
    return e.StepFailed(step=step, digest=DIGEST, error=e.ErrorInfo(type="ValueError", message="no"), **fields)


def doubted(step: str = "0/pay#1", *, why: str = "crash", **fields: Any) -> e.Entry:
    """Return a step's doubt."""
    return e.StepDoubted(step=step, why=why, **fields)


def resolved(outcome: str, step: str = "0/pay#1", *, value: bytes = b"null") -> e.Entry:
    """Return the end of a doubt by a person's word."""
    return e.StepResolved(step=step, how="person", outcome=outcome, raw=Raw(value))


def resumed(fence: int) -> e.Entry:
    """Return a resume under a fence."""
    return e.RunResumed(worker=OTHER, fence=fence, attempt=2, why="claimed")


ADDED: tuple[e.Entry, ...] = (
    e.CancelReceived(post=4, by="ann", reason="cancelled: no need"),
    e.CancelReceived(post=4),
    e.RunParked(
        status=Status.WAITING,
        reason="signal",
        waits=[e.Wait("signal", "0/receive#1", "paid", 5), e.Wait("sleep", "0/gather#1.2/sleep#1")],
    ),
    e.StepStarted(step="0/pay#1", digest="ab" * 32, effect=Effect.ONCE, usage={"steps": 1}),
    e.BudgetChanged(moves=[e.BudgetMove("steps", total=50)], why="raised: close", by="ann"),
    e.RunForked(base=OTHER, base_seq=17, base_checksum="00" * 16, seed=SEED, by="ann"),
    e.MessageAdded(
        role="user",
        step="0/steer#1",
        provider="anthropic",
        model="m-1",
        attempt=2,
        usage={"input": 7, "cost": None},
        post=3,
        by="ann",
    ),
    e.HistoryCompacted(up_to=40, step="0/compact#1", attempt=2, usage={"input": 7}),
    e.RunFinished(status=Status.COMPLETED, said=12),
    e.ChildSettled(step="0/clerk#1", child=OTHER, status=Status.COMPLETED, unknown=["usd"]),
    e.HistoryCompacted(up_to=40, phase="refunds"),
    e.CheckpointOpened(worker=OTHER, host="web-1", pid=412, attempt=2, code="2026.11"),
    e.CheckpointOpened(worker=OTHER, host="web-1", pid=412, attempt=1),
    e.CheckpointSaved(
        count=2, iteration=3, phase="tools", raw=Raw(b'[[0,1,[{"role":"user"}]],[1,0,["\xc3\xa9"]]]'), blob=BLOB
    ),
    e.CheckpointSaved(count=0),
)
"""Kinds and fields that came later; their vectors stand behind the others, whose places never change."""
