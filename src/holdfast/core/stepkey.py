"""Step keys: the stable address of a step within its run, `generation/branch#n.i/name#n`."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from holdfast.core import limits
from holdfast.core.errors import InvalidInput

_SAFE: Final = ""  # quote() always keeps letters, digits and "_.-~"


def encode_part(text: str) -> str:
    """Return `text` percent-encoded outside `[A-Za-z0-9_.-]`, so that joining parts is unambiguous."""
    return quote(text, safe=_SAFE).replace("~", "%7E")


def join_key(parts: str | Iterable[str | int]) -> str:
    """Return a run's key: text as it is, or a tuple's parts encoded and joined by `/`.

    Raises:
        InvalidInput: a part is empty or is neither text nor an integer.
    """
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, tuple | list):
        raise InvalidInput(f"a key is text, or a tuple of text and integers, not {type(parts).__name__}")
    texts = []
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int) or part == "":
            raise InvalidInput(f"a part of a key must be text or an integer and not empty, not {part!r}")
        try:
            texts.append(encode_part(str(part)))
        except UnicodeEncodeError:
            raise InvalidInput("the key holds a lone surrogate, which is not text") from None
        except ValueError as error:
            raise InvalidInput(f"a part of the key is an integer too long to write: {error}") from None
    if not texts:
        raise InvalidInput("the key is empty")
    return "/".join(texts)


def encode_name(name: str) -> str:
    """Return the name of a step or of what is emitted, encoded.

    Raises:
        InvalidInput: it is not text, empty, too long, or holds a lone surrogate.
    """
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"a step's name must be text and not empty, not {str(name)[:60]!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput("a step's name holds a lone surrogate, which is not text") from None
    if size > limits.NAME_BYTES:
        raise InvalidInput(f"a step's name is {size:,} bytes; the limit is {limits.NAME_BYTES:,}")
    return encode_part(name)


def root_branch(generation: int) -> str:
    """Return the path of a generation's outermost branch."""
    return str(generation)


def set_path(parent: str, name: str, nth: int) -> str:
    """Return the path of the nth branch set called `name` in `parent`, which takes one place there."""
    return f"{parent}/{encode_part(name)}#{nth}"


def branch_path(branch_set: str, index: int | str) -> str:
    """Return the path of one branch of a set: by its number there, or by the key that its author gave it."""
    return f"{branch_set}.{index}" if isinstance(index, int) else f"{branch_set}.={encode_part(index)}"


def set_of(branch: str) -> str | None:
    """Return the set that a branch belongs to; None for an outermost one."""
    parent, divider, last = branch.rpartition("/")
    if not divider:
        return None
    name, mark, rest = last.partition("#")
    return f"{parent}/{name}{mark}{rest.partition('.')[0]}"


def counted_key(branch: str, name: str, nth: int) -> str:
    """Return the key of the nth step called `name` (already encoded) in `branch`."""
    return f"{branch}/{name}#{nth}"


def explicit_key(branch: str, key: str) -> str:
    """Return the key of a step that its author named.

    Raises:
        InvalidInput: the key is empty or too long.
    """
    if not isinstance(key, str) or not key:
        raise InvalidInput("a step's key must be text and not empty")
    try:
        encoded = f"{branch}/={encode_part(key)}"
    except UnicodeEncodeError:
        raise InvalidInput("a step's key holds a lone surrogate, which is not text") from None
    if len(encoded) > limits.STEP_KEY_BYTES:
        raise InvalidInput(f"a step's key is {len(encoded):,} bytes encoded; the limit is {limits.STEP_KEY_BYTES:,}")
    return encoded


def former_keys(step: str, aliases: Iterable[str]) -> list[str]:
    """Return the keys that a counted step had under its former names (already encoded)."""
    branch, _, last = step.rpartition("/")
    _, mark, nth = last.rpartition("#")
    return [f"{branch}/{alias}#{nth}" for alias in aliases] if mark else []


def branch_of(step: str) -> str:
    """Return the branch that a step key stands in."""
    return step.rpartition("/")[0]
