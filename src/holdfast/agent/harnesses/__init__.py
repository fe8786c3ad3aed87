"""The harnesses that Holdfast brings, each loaded when it is first asked for."""
