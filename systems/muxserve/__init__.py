"""MuxServe (ICML'24): several models share one device at the same time."""
