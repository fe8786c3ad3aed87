"""An LLM agent as ordinary durable code."""
