"""What a worker gives to every run it drives."""

from typing import Any

from holdfast.engine.payload import Secrets
from holdfast.engine.threads import Threads


class Surroundings:
    """What all code of one worker finds around it."""

    patience_seconds: float = 1.0
    """A retry due within it is waited for in the process; a later one parks the run."""

    watched: bool = False
    """Whether somebody here tells how the run at the top ends: its failure is then not logged too."""

    def __init__(self, *, deps: Any = None, secrets: Secrets | None = None, log: Any = None) -> None:
        self.deps = deps
        self.secrets = secrets if secrets is not None else Secrets()
        self.threads = Threads()
        self.log = log
