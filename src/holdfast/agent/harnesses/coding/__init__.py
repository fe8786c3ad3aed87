"""Coding programs as harnesses: each is described by data, and its session is the cursor."""
