"""One run, from a composed configuration to a run folder."""
