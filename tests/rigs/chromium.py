"""Debian's Chromium, as the tests start it."""

import os
import shutil
from typing import Any, Final

CHROMIUM: Final = "/usr/bin/chromium"


def launching() -> dict[str, Any]:
    """Return how playwright launches it."""
    assert shutil.which(CHROMIUM), f"this needs Chromium at {CHROMIUM}: apt-get install chromium"
    return {"executable_path": CHROMIUM, "args": ["--no-sandbox"] if os.getuid() == 0 else []}
