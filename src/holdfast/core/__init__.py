"""Values and pure rules: no I/O, no event loop, no clock."""
