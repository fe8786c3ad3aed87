"""Loggers with run and step on every line, made when first used."""

import sys
from typing import Any


class Log:
    """A structlog logger that is only imported when somebody logs."""

    __slots__ = ("_bound",)

    def __init__(self, **bound: Any) -> None:
        self._bound = bound

    def bind(self, **more: Any) -> "Log":
        """Return a logger that says `more` on every line."""
        return Log(**{**self._bound, **more})

    def _say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        import structlog  # lazy: twenty milliseconds that most programs never need

        if structlog.is_configured():
            logger = structlog.get_logger("holdfast")
        else:
            # Left to itself structlog writes to standard output, which belongs to the program.
            logger = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        # What the caller says of the same name counts, as it does for structlog: a line must not end a run.
        getattr(logger, level)(event, **{**self._bound, **fields})

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log for developers."""
        self._say("debug", event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Log what happens."""
        self._say("info", event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log what somebody should know."""
        self._say("warning", event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Log what somebody must mend."""
        self._say("error", event, fields)


class _Silent(Log):
    """Says nothing: what is replayed was logged when it happened."""

    __slots__ = ()

    def bind(self, **more: Any) -> "Log":
        return self

    def _say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        return None


SILENT = _Silent()
