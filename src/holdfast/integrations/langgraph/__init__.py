"""LangGraph's checkpoints in a Holdfast store, in bytes that grow with what is said and not with its square."""

try:
    from holdfast.integrations.langgraph.saver import HoldfastSaver
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"LangGraph's saver needs {missing.name}, which is not installed: pip install 'holdfast[langgraph]'",
        name=missing.name,
    ) from missing

__all__ = ["HoldfastSaver"]
