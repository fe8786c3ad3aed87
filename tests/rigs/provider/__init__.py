"""A provider of models on a real socket, which speaks their wire formats and fails on demand."""

from tests.rigs.provider.server import Provider
from tests.rigs.provider.turn import Answer, Call, Fault, Turn

__all__ = ["Answer", "Call", "Fault", "Provider", "Turn"]
