"""Exported runs against today's code: a test that a deploy will not be refused by the runs that are under way."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.client.archive import ArchivedRun, read_archive
from holdfast.core.errors import Diverged, InvalidInput
from holdfast.core.ids import RunId
from holdfast.engine.app import App
from holdfast.engine.function import Durable
from holdfast.engine.payload import Secrets
from holdfast.engine.rehearsal import Stopped, rehearse


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run that today's code follows: to its end, or up to the step that it would perform next."""

    run: RunId
    name: str
    stopped_at: str | None
    """The step key at which what is recorded ends; None when the code came to its own end."""


def replay(what: Durable[Any, ...] | App, archive: str | os.PathLike[str] | Iterable[bytes]) -> Sequence[Replayed]:
    """Run today's code over every run of an archive, given as a file or as its lines, and perform nothing.

    A run that has ended must end alike; one that was under way is followed to where it was left.

    Raises:
        Diverged: the code asks for something other than what a run recorded.
        InvalidInput: the archive cannot be read, or holds a run of another function.
        Damaged: a run of it is not as it was written.
    """
    return [_replay(what, archived) for archived in _runs(archive)]


def _replay(what: Durable[Any, ...] | App, archived: ArchivedRun) -> Replayed:
    name = archived.row.name
    function = what.get(name) if isinstance(what, App) else what if what.name == name else None
    if function is None:
        raise InvalidInput(f"the archive holds a run of {name!r}, which {what!r} is not")
    secrets = Secrets(what.secrets if isinstance(what, App) else ())
    rehearsed = rehearse(
        function, archived.run, archived.entries, blobs=archived.blobs, secrets=secrets, shares=archived.shares
    )
    if isinstance(rehearsed, Diverged):
        rehearsed.add_note(f"in run {archived.run} of {name}")
        raise rehearsed
    return Replayed(archived.run, name, rehearsed.step if isinstance(rehearsed, Stopped) else None)


def _runs(archive: str | os.PathLike[str] | Iterable[bytes]) -> Iterator[ArchivedRun]:
    if isinstance(archive, str | os.PathLike):
        yield from read_archive(os.fspath(archive))
        return
    with tempfile.NamedTemporaryFile(prefix="holdfast-", suffix=".jsonl") as file:
        file.writelines(archive)
        file.flush()
        yield from read_archive(file.name)
