"""What a docstring says of a function and of each parameter, in the Google, numpy and reST manners."""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_PARAMETERS: Final = {
    "args",
    "arguments",
    "parameters",
    "params",
    "other parameters",
    "keyword args",
    "keyword arguments",
}
_SECTIONS: Final = _PARAMETERS | {
    "returns", "return", "yields", "yield", "raises", "raise", "warns", "examples", "example", "see also", "attributes",
    "references", "notes", "note", "warnings", "todo",
}  # fmt: skip
_KEPT: Final = {"notes", "note", "warnings", "examples", "example"}
"""Sections that tell a model something: they stay in the description."""
_FIELD: Final = re.compile(r":(\w+)((?:\s+[^:\s]+)*)\s*:\s*(.*)")
_GOOGLE: Final = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY: Final = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_RULE: Final = re.compile(r"-{3,}\s*$")
_PARAM_FIELDS: Final = {"param", "parameter", "arg", "argument", "key", "keyword"}


@dataclass(frozen=True, slots=True)
class Docstring:
    """The description without its sections, and the parameters' texts by name."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str) -> Docstring:
    """Return what a docstring says; one of no known manner is all description."""
    lines = inspect.cleandoc(text).splitlines()
    kept: list[str] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        name, body = _section(lines, at)
        if name is None:
            end = _field_end(lines, at)
            if end == at:
                kept.append(lines[at])
                end = at + 1
            else:
                parameters |= _rest(lines[at:end])
            at = end
            continue
        end = _section_end(lines, body, is_numpy=body == at + 2)
        if name in _PARAMETERS:
            parameters |= _numpy(lines[body:end]) if body == at + 2 else _google(lines[body:end])
        elif name in _KEPT:
            kept += lines[at:end]
        at = end
    return Docstring(re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), parameters)


def _section(lines: Sequence[str], at: int) -> tuple[str | None, int]:
    """Return the section that begins at a line and where its body does, or None."""
    line = lines[at]
    word = line.strip().lower()
    if line[:1].isspace():
        return None, at
    if word in _SECTIONS and at + 1 < len(lines) and _RULE.fullmatch(lines[at + 1]):
        return word, at + 2
    # A line in Google's manner is a heading only where something indented follows.
    follows = next((each for each in lines[at + 1 :] if each.strip()), "")
    if word.endswith(":") and word[:-1] in _SECTIONS and follows[:1].isspace():
        return word[:-1], at + 1
    return None, at


def _section_end(lines: Sequence[str], body: int, *, is_numpy: bool) -> int:
    """Return the line behind a section: at the next one, or where the text is no longer indented."""
    at = body
    while at < len(lines):
        if lines[at].strip():
            if _section(lines, at)[0] is not None:
                break
            if not is_numpy and not lines[at][:1].isspace():
                break
        at += 1
    return at


def _field_end(lines: Sequence[str], at: int) -> int:
    """Return the line behind the reST field that begins at a line; that line itself if none does."""
    if not _FIELD.fullmatch(lines[at]):
        return at
    end = at + 1
    while end < len(lines) and (lines[end][:1].isspace() or (not lines[end].strip() and _goes_on(lines, end))):
        end += 1
    return end


def _goes_on(lines: Sequence[str], at: int) -> bool:
    return next((each for each in lines[at:] if each.strip()), "")[:1].isspace()


def _rest(lines: Sequence[str]) -> dict[str, str]:
    found = _FIELD.fullmatch(lines[0])
    assert found is not None
    words = found[2].split()
    if found[1] not in _PARAM_FIELDS or not words:
        return {}
    return {words[-1].lstrip("*"): _flowing([found[3], *lines[1:]])}


def _google(lines: Sequence[str]) -> dict[str, str]:
    parameters = {}
    for block in _blocks(lines):
        found = _GOOGLE.fullmatch(block[0].strip())
        if found is not None:
            parameters[found[1].lstrip("*")] = _flowing([found[2], *block[1:]])
    return parameters


def _numpy(lines: Sequence[str]) -> dict[str, str]:
    parameters = {}
    for block in _blocks(lines):
        found = _NUMPY.fullmatch(block[0].strip())
        if found is not None:
            for name in found[1].split(","):
                parameters[name.strip().lstrip("*")] = _flowing(block[1:])
    return parameters


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield each least indented line with those below it that are indented more."""
    full = [line for line in lines if line.strip()]
    least = min((len(line) - len(line.lstrip()) for line in full), default=0)
    block: list[str] = []
    for line in full:
        if len(line) - len(line.lstrip()) == least and block:
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _flowing(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())
