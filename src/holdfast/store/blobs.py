"""Blobs in memory: their bytes, who names them, and when they were last written; the documentation of the SQL ones."""

from collections.abc import Sequence
from hashlib import sha256

from holdfast.core.errors import Damaged, NotFound
from holdfast.core.ids import RunId
from holdfast.store.value import NewBlob, RunRow


class Blobs:
    """The blobs of one store, each known by its tenant and its digest."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[str, str], bytes] = {}
        self._touched: dict[tuple[str, str], int] = {}
        self.named: dict[RunId, set[tuple[str, str]]] = {}

    def twin(self) -> "Blobs":
        """Return others with the same contents."""
        twin = Blobs()
        twin.bodies, twin._touched = dict(self.bodies), dict(self._touched)
        twin.named = {run: set(named) for run, named in self.named.items()}
        return twin

    def add(self, row: RunRow, blobs: Sequence[NewBlob], now: int) -> None:
        """Keep what a run names."""
        added = {(row.tenant, blob.digest): blob.body for blob in blobs}
        self.bodies |= added
        self._touched |= dict.fromkeys(added, now)
        self.named.setdefault(row.run, set()).update(added)

    def share(self, base: RunId, fork: RunId) -> None:
        """Let a fork name what its base names."""
        self.named[fork] = set(self.named.get(base, ()))

    def forget(self, run: RunId) -> None:
        """Let a run that is deleted name nothing."""
        self.named.pop(run, None)

    def read(self, tenant: str, digest: str) -> bytes:
        """Return the bytes of a blob.

        Raises:
            NotFound: there is no such blob.
            Damaged: it is not what its digest says.
        """
        body = self.bodies.get((tenant, digest))
        if body is None:
            raise NotFound(f"blob {digest}")
        if sha256(body).hexdigest() != digest:
            raise Damaged(run="", seq=None, what=f"blob {digest} does not have the bytes its digest says")
        return body

    def sweep(self, before: int) -> int:
        """Drop what nobody names and nobody has written since; return how many."""
        named = set[tuple[str, str]]().union(*self.named.values())
        stale = [blob for blob, at in self._touched.items() if at < before and blob not in named]
        for blob in stale:
            del self.bodies[blob], self._touched[blob]
        return len(stale)
