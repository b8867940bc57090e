"""Figures and reports of runs and of papers."""

import matplotlib.artist

# The docstrings that matplotlib makes of its classes: as long as drawing the picture of a run.
matplotlib.artist.kwdoc = lambda artist: ""
