"""One module per peer, run in that peer's own virtual environment; only the standard library and the peer are there."""
