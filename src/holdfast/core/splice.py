"""What changed between two lists of messages, so that a transcript is stored once and not once for each save."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

_AROUND: Final = 64
"""The bytes that a change needs besides its messages, at most."""


class Splice(NamedTuple):
    """From place `at` on `removed` messages are gone, and `added` stand there instead."""

    at: int
    removed: int
    added: Sequence[Any]


def splices(old: Sequence[Any], new: Sequence[Any]) -> list[Splice]:
    """Return the changes that turn `old` into `new`, to be made one after the other; none for equal lists.

    A list that only grew is the commonest case and costs one comparison. Where messages were edited, that is stored
    which is less: the messages that differ, each in its place, or the whole stretch between those that did not change.
    """
    if old == new[: len(old)]:
        return [Splice(len(old), 0, new[len(old) :])] if len(new) > len(old) else []
    common = min(len(old), len(new))
    changed = [place for place in range(common) if old[place] != new[place]]
    first = changed[0] if changed else common
    rest = common - first
    kept = next((n for n in range(rest) if old[-1 - n] != new[-1 - n]), rest)
    stretch = Splice(first, len(old) - first - kept, new[first : len(new) - kept])
    if len(changed) + len(new) - common < len(stretch.added):
        return [*_stretches(changed, new), *_tail(old, new, common)]
    return [stretch]


def _stretches(changed: Sequence[int], new: Sequence[Any]) -> Iterator[Splice]:
    """Yield the messages at these places, neighbours together."""
    begin = 0
    for end in range(1, len(changed) + 1):
        if end == len(changed) or changed[end] != changed[end - 1] + 1:
            yield Splice(changed[begin], end - begin, new[changed[begin] : changed[end - 1] + 1])
            begin = end


def _tail(old: Sequence[Any], new: Sequence[Any], common: int) -> list[Splice]:
    return [Splice(common, len(old) - common, new[common:])] if len(old) != len(new) else []


def spliced(messages: list[Any], changes: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the messages after these changes, each `[at, removed, added]`.

    Raises:
        ValueError: a change is not one, or begins behind the end: it was made of another list.
    """
    for at, removed, added in changes:
        if not (isinstance(added, list | tuple) and 0 <= at <= len(messages) and 0 <= removed <= len(messages) - at):
            raise ValueError(f"a change at message {at} does not fit {len(messages)} messages")
        messages[at : at + removed] = added
    return messages


def packed(changes: Sequence[Splice], encode: Callable[[int, Any], bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """Yield the changes as JSON, in as many bodies as `most` bytes for each make, with how many messages each adds up.

    The number is by how much the list has grown then. `encode` is given a message's place and the message; one that is
    larger than `most` gets a body of its own, for whoever stores it to refuse.
    """
    grown, body, size = 0, list[bytes](), 0
    for change in changes:
        pending, at, removed = list[bytes](), change.at, change.removed
        for place, message in enumerate(change.added, change.at):
            raw = encode(place, message)
            if size + len(raw) + _AROUND > most and (pending or body):
                if pending or removed:
                    body.append(_change(at, removed, pending))
                    grown += len(pending) - removed
                yield grown, b"[%s]" % b",".join(body)
                body, pending, size, at, removed = [], [], 0, place, 0
            pending.append(raw)
            size += len(raw) + 1
        if pending or removed:
            body.append(_change(at, removed, pending))
            grown += len(pending) - removed
            size += _AROUND
    if body:
        yield grown, b"[%s]" % b",".join(body)


def _change(at: int, removed: int, added: Sequence[bytes]) -> bytes:
    return b"[%d,%d,[%s]]" % (at, removed, b",".join(added))


def copied(value: Any) -> Any:
    """Return plain data that nobody else can change; texts and numbers are shared, so that comparing costs little."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value
