"""The client on the wire; nothing is here yet."""
