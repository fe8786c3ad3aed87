"""The client on the wire: an ASGI application that serves a runtime, and chat turns for applications of your own."""

from holdfast.core.hooks import Hooks, Outcome
from holdfast.server.app import create_app
from holdfast.server.chat import handle_chat_turn

__all__ = ["Hooks", "Outcome", "create_app", "handle_chat_turn"]
