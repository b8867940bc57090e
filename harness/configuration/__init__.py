"""What a run is asked to be: composing, checking and explaining keys."""
