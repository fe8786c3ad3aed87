"""Agents of the OpenAI Agents SDK that survive a crash, and sessions that outlive their process."""

from holdfast.integrations.openai_agents.running import PATIENCE, run
from holdfast.integrations.openai_agents.session import HoldfastSession, session_change
from holdfast.integrations.policy import ToolPolicy
from holdfast.integrations.relay import current_step

__all__ = ["PATIENCE", "HoldfastSession", "ToolPolicy", "current_step", "run", "session_change"]
