"""Faults as experiments: the same schedule with and without a fault, system by system."""
