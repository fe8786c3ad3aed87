"""What a generation cost, by the prices that `genai-prices` knows; what it does not know stays unknown."""

import asyncio
import sys
from decimal import Decimal
from importlib import import_module
from typing import Any, Final

import msgspec

from holdfast.core.message import Usage

_PACKAGE: Final = "genai_prices"
_NANO: Final = Decimal(10) ** 9


async def load() -> None:
    """Load the prices where they are installed, beside the event loop: they are large."""
    if _PACKAGE not in sys.modules:
        await asyncio.to_thread(_known_prices)


def priced(
    usage: Usage, model: str, *, provider: str | None = None, url: str | None = None, written: int | None = None
) -> Usage:
    """Return the usage with its cost in nano-USD, where the provider (by name or by address) and the model are known.

    `written` is how much of the input was put into the provider's cache, which some charge for.
    """
    cost = _cost(usage, model, provider, url, written)
    return usage if cost is None else msgspec.structs.replace(usage, cost=cost)


def _cost(usage: Usage, model: str, provider: str | None, url: str | None, written: int | None) -> int | None:
    if usage.input is None or usage.output is None:
        return None
    known = _known_prices()
    if known is None:
        return None
    counted = known.Usage(
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_read_tokens=usage.cached,
        cache_write_tokens=written,
    )
    by = {"provider_id": provider} if provider is not None else {"provider_api_url": url}
    try:
        found = known.calc_price(counted, model, **by)
    except (LookupError, ValueError):
        return None
    return int((found.total_price * _NANO).to_integral_value())


def _known_prices() -> Any:
    try:
        return import_module(_PACKAGE)
    except ImportError:
        return None
