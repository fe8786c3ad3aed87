"""One run's history: append under a lease, and replay."""
