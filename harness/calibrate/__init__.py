"""Calibration of the simulator: measured latencies in, constants of conf/hardware out."""
