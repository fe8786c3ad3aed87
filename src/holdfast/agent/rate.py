"""What a provider's headers say of its rate limit, in whichever of their many forms."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

from holdfast.agent.lane import RateSeen, Window


def seen_in(headers: Mapping[str, str], *, busy: bool, now: datetime) -> RateSeen:
    """Return what the headers of a reply say of its lane, their names in lower case; `now` is when they came."""
    return RateSeen(
        requests=_window(_first(headers, _REQUESTS), now),
        tokens=_window(_first(headers, _TOKENS), now),
        retry_after=_seconds(retry_after(headers), now) if busy else None,
        busy=busy,
    )


def retry_after(headers: Mapping[str, str]) -> float | datetime | None:
    """Return when a refused request may come again: its own headers first, else when what is used up is full again."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    asked = moment(headers.get("retry-after", ""))
    if asked is not None:
        return asked
    told = [said for names in (_REQUESTS, _TOKENS) if (said := _first(headers, names)) and said.reset is not None]
    used_up = [said for said in told if said.remaining == 0]
    return next((said.reset for said in used_up or told), None)


_UNIT_SECONDS: Final = {"ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|us|µs|ns|[smhd]))+")
_SPAN_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|[smhd])")
_EPOCH_SECONDS: Final = 1e9
"""A number above this is a time since 1970 and no number of seconds to wait."""
_EPOCH_MILLISECONDS: Final = 1e12


def moment(text: str) -> float | datetime | None:
    """Read when something is due: seconds, a span such as `6m0s`, a time since 1970, an HTTP date or an ISO time."""
    text = text.strip()
    if not text:
        return None
    if (number := _number(text)) is not None:
        return _since_1970(number) if number >= _EPOCH_SECONDS else number
    if _SPAN.fullmatch(text):
        return sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in _SPAN_PART.findall(text))
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            at = read(text)
        except (ValueError, OverflowError):
            continue
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _since_1970(number: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(number / 1000 if number >= _EPOCH_MILLISECONDS else number, UTC)
    except (ValueError, OverflowError, OSError):
        return None


_Names = tuple[tuple[str, str, str], ...]
_REQUESTS: Final[_Names] = (
    ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    (
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ),
    ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"),
    ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
)
_TOKENS: Final[_Names] = (
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    (
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
    ),
)


class _Said(Struct, frozen=True):
    """One family of headers."""

    limit: int | None
    remaining: int | None
    reset: float | datetime | None


def _first(headers: Mapping[str, str], names: _Names) -> _Said | None:
    """Return what the first family that is there says."""
    for limit, remaining, reset in names:
        if limit in headers or remaining in headers or reset in headers:
            return _Said(
                limit=_whole(headers.get(limit, "")),
                remaining=_whole(headers.get(remaining, "")),
                reset=moment(headers.get(reset, "")),
            )
    return None


def _window(said: _Said | None, now: datetime) -> Window:
    return Window() if said is None else Window(said.limit, said.remaining, _seconds(said.reset, now))


def _seconds(at: float | datetime | None, now: datetime) -> float | None:
    return max(0.0, (at - now).total_seconds()) if isinstance(at, datetime) else at


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
