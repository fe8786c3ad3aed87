"""Processes whose calendar is wrong, while time passes for them as it does for everyone."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

AN_HOUR_BACK: Final = "-3600"
TEN_YEARS_ON: Final = "+315360000"
FIVE_MINUTES_ON: Final = "+300"
_PLACES: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


def shifted(by: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process whose clock is `by` seconds, with a sign, away from ours.

    The monotonic clock is left alone: no machine's can be set.
    """
    own = dict(os.environ if environment is None else environment)
    return {**own, "LD_PRELOAD": str(_library()), "FAKETIME": by, "DONT_FAKE_MONOTONIC": "1"}


def _library() -> Path:
    for place in _PLACES:
        for found in sorted(Path(place).glob("**/libfaketimeMT.so.1")):
            return found
    raise RuntimeError("libfaketime is not installed: apt-get install faketime")
