"""Models of real providers, each behind the same small protocol."""

from holdfast.agent.providers.find import find

__all__ = ["find"]
