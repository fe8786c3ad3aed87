"""Callback tokens: whoever holds one may answer one wait of one run, and nothing else."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest, digest
from typing import Final

from holdfast.core.ids import RunId, id_bytes, id_text

_PREFIX: Final = "hfc_"
_FORM: Final = re.compile(_PREFIX + "[A-Za-z0-9_-]{64}")
_RUN_BYTES: Final = 16
_PLACE_BYTES: Final = 12
_MAC_BYTES: Final = 20


def place_of(step: str) -> bytes:
    """Return what stands for a step key in a token."""
    return blake2b(step.encode(), digest_size=_PLACE_BYTES, person=b"callback").digest()


def make_token(secret: bytes, run: RunId, step: str) -> str:
    """Return the token of a wait: the same at every replay, since it is made and not kept."""
    named = id_bytes(run) + place_of(step)
    return _PREFIX + urlsafe_b64encode(named + _mac(secret, named)).decode()


def read_token(secret: bytes, token: str) -> tuple[RunId, bytes] | None:
    """Return the run and the place that a token names; None for one that was not made with this secret.

    It takes as long for one that is nearly right as for one that is wrong.
    """
    if not isinstance(token, str) or _FORM.fullmatch(token) is None:
        return None
    raw = urlsafe_b64decode(token.removeprefix(_PREFIX))
    named, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
    if not compare_digest(_mac(secret, named), mac):
        return None
    return id_text(named[:_RUN_BYTES]), named[_RUN_BYTES:]


def _mac(secret: bytes, named: bytes) -> bytes:
    return digest(secret, b"holdfast callback" + named, "sha256")[:_MAC_BYTES]


def is_token(text: str) -> bool:
    """Say whether a text has the form of a callback token, whoever made it."""
    return text.startswith(_PREFIX)
