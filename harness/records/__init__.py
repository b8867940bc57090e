"""What becomes of a run's records."""
