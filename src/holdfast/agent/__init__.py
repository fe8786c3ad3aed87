"""An LLM agent as ordinary durable code; nothing is here yet."""
