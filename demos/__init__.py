"""Demonstrations that need more than the default install."""
