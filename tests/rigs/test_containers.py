"""A worker in a container of its own is known by its lock, not by its process number or its host name."""

from pathlib import Path

from tests.engine.test_lock import Holder

APART = ("unshare", "--pid", "--fork", "--kill-child")


def test_a_worker_that_sees_other_process_numbers_is_not_taken_for_dead(tmp_path: Path) -> None:
    """In a container it may be process 1 under the same host name as everybody else; its lock is still its own."""
    holder = Holder(str(tmp_path / "workers"), "alone", *APART)
    try:
        assert holder.number == 1
        assert holder.proof() is None
    finally:
        holder.process.kill()
        holder.process.communicate(timeout=30)
