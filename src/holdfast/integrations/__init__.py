"""Agents of other frameworks, made durable: each module needs its framework, and is imported by its own name."""
