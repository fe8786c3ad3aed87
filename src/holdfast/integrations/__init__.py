"""Holdfast under the agent frameworks of others, each in a module that needs its own extra."""
