"""MuxServe (ICML'24): several models on one device, side by side."""
