"""Holdfast measured beside its peers and beside the disk itself; start at `python -m benchmarks --help`."""
