"""The read side: a run's events from any cursor."""
