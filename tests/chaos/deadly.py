"""A module that ends whoever imports it, while there is a cause."""

import os
import signal
from pathlib import Path

from tests.chaos.poisons import CAUSE

if Path(os.environ[CAUSE]).exists():
    os.kill(os.getpid(), signal.SIGSEGV)
