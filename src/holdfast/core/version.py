"""Which versions of code may drive a run: the word on it in the run's row, and whom that word admits."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

_MOST_REFUSALS: Final = 16
_EXACTLY: Final = "="
LEFT: Final = "||"
"""How a word ends that keeps even what is asked of its run for those whom it admits; no other word ends so."""

_VERSIONS: Final = msgspec.json.Decoder(dict[str, tuple[str, str, int]])


class CodeVersion(Struct, frozen=True, kw_only=True):
    """A version of the code of one name, and its place in the order in which they were first registered."""

    name: str
    code: str
    source: str = ""
    """A digest of the function's source."""
    place: int = 0
    """Grows with every version that is registered in a store; 0 before."""


class Served(str):
    """What a worker serves a name with: the token that its refusals go by, the version, and the version's place.

    A plain text says the token only: a version of that name, whose place nobody asks for.
    """

    code: str
    place: int | None

    def __new__(cls, token: str, *, code: str | None = None, place: int | None = None) -> "Served":
        served = super().__new__(cls, token)
        served.code, served.place = token if code is None else code, place
        return served


class Need(Struct, frozen=True):
    """What a row says of the code that its run wants: `need|token|token|`, or nothing at all.

    The need is the place of the version that drove it last, so that only that one and later ones do, or the one
    version that it is pinned to. The tokens are of code that refused it. One more `|` says that it was left.
    """

    exactly: str | None = None
    at_least: int = 0
    refused: tuple[str, ...] = ()
    left: bool = False
    """True once its end was asked for and somebody who may not drive it left that to those who may."""

    @classmethod
    def read(cls, word: str) -> "Need":
        """Return what a row's word says."""
        need, _, tokens = word.partition("|")
        refused, left = tuple(token for token in tokens.split("|") if token), word.endswith(LEFT)
        if need.startswith(_EXACTLY):
            return cls(exactly=need[len(_EXACTLY) :], refused=refused, left=left)
        return cls(at_least=int(need) if need.isdecimal() else 0, refused=refused, left=left)

    @property
    def word(self) -> str:
        """As it stands in the row."""
        need = f"{_EXACTLY}{self.exactly}" if self.exactly is not None else str(self.at_least or "")
        tokens = "".join(f"{token}|" for token in self.refused)
        return f"{need}|{tokens}{'|' if self.left else ''}" if need or tokens or self.left else ""

    def admits(self, served: str) -> bool:
        """Say whether a version may drive the run."""
        version = served if isinstance(served, Served) else Served(served)
        if version in self.refused or self.exactly not in (None, version.code):
            return False
        return version.place is None or version.place >= self.at_least


def admits(word: str, served: str) -> bool:
    """Say whether a row's word lets a version drive its run."""
    return not word or Need.read(word).admits(served)


def refusing(word: str, token: str) -> str:
    """Return a row's word with one more that refused the run; the oldest are forgotten."""
    need = Need.read(word)
    tokens = (*(known for known in need.refused if known != token), token)
    return Need(need.exactly, need.at_least, tokens[-_MOST_REFUSALS:]).word


def adopted(word: str, place: int) -> str:
    """Return a row's word once the version of that place drives the run; a pin stays what it is."""
    need = Need.read(word)
    return Need(need.exactly, place if need.exactly is None else 0, need.refused).word


def left_to_others(word: str) -> str:
    """Return a row's word once what was asked of its run is kept for those whom it admits."""
    need = Need.read(word)
    return Need(need.exactly, need.at_least, need.refused, left=True).word


def begun(code: str, place: int, *, pin: bool) -> str:
    """Return the word of a new run: code of that version, and of that place among the versions of its name."""
    return Need(code if pin else None, place).word


def said_versions(about: Mapping[str, str]) -> list[tuple[str, Served]]:
    """Return what a worker said it serves, and with which versions; what cannot be read was not said."""
    try:
        versions = _VERSIONS.decode(about.get("versions", "{}"))
    except msgspec.MsgspecError:
        return []
    return [(name, Served(token, code=code, place=place)) for name, (token, code, place) in versions.items()]
