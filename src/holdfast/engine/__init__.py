"""The write side: workers that claim runs and drive their code."""
