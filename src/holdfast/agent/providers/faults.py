"""What went wrong with a provider, as one of three answers: come back later, it was cut, or never like this."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.agent.model import ModelBusy, ModelCut, ModelError, ModelRefused
from holdfast.agent.rate import retry_after
from holdfast.core.message import Usage

_BUSY: Final = {409, 425, 429, 503, 529}
_MAYBE: Final = {408}
"""Nobody knows whether it was begun, as with every status from 500 that is not a busy one."""
_BUSY_WORDS: Final = {"overloaded_error", "rate_limit_error", "rate_limit_exceeded", "server_busy", "overloaded"}
_NEVER_WORDS: Final = {"insufficient_quota", "billing_hard_limit_reached"}
"""Sent as 429 though waiting does not help."""
_MESSAGE_CHARACTERS: Final = 2000


def by_status(status: int, body: bytes, headers: Mapping[str, str], *, model: str, key: str = "") -> ModelError:
    """Return the error of a reply that is none, with what the provider says; header names are in lower case.

    `key` is left out of what it says, since some repeat it to whoever sent a wrong one.
    """
    said, words = read_error(body, key)
    message = f"{model} answered {status}: {said}" if said else f"{model} answered {status}"
    if status in _BUSY and not words & _NEVER_WORDS:
        return ModelBusy(message, retry_after=retry_after(headers), status=status)
    if status >= 500 or status in _MAYBE:
        return ModelCut(message, retry_after=retry_after(headers), usage=Usage(), status=status)
    return ModelRefused(message, status=status)


def in_stream(error: Any, *, model: str, begun: bool, usage: Usage | None, key: str = "") -> ModelError:
    """Return the error that a provider sent as an event; after the first piece it is a cut, whatever it says."""
    said, words = read_error(msgspec.json.encode({"error": error}), key)
    message = f"{model} broke off: {said}"
    status = error.get("code") if isinstance(error, dict) else None
    status = status if isinstance(status, int) else None
    if not begun and (words & _BUSY_WORDS or status in _BUSY):
        return ModelBusy(message, status=status)
    if not begun and ("invalid_request_error" in words or (status is not None and 400 <= status < 500)):
        return ModelRefused(message, status=status)
    return ModelCut(message, usage=usage or Usage(), status=status)


def read_error(body: bytes, key: str) -> tuple[str, set[str]]:
    """Return what an error's body says, without the key, and the words by which machines know it."""
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return _shown(body.decode(errors="replace").strip(), key), set()
    if isinstance(told, list) and told:
        told = told[0]
    error = told.get("error", told) if isinstance(told, dict) else told
    if not isinstance(error, dict):
        return _shown(str(error), key), set()
    words = {word for word in (error.get("type"), error.get("code"), error.get("status")) if isinstance(word, str)}
    said = error.get("message") or error.get("detail") or ", ".join(sorted(words))
    return _shown(str(said), key), words


def without_key(text: str, key: str) -> str:
    """Return a text with the key left out."""
    return text.replace(key, "[key]") if key else text


def _shown(text: str, key: str) -> str:
    # The key first: half of one is not found.
    return without_key(text, key)[:_MESSAGE_CHARACTERS]
