"""Devices that many models share in turn: Aegaeon §5's mechanisms, once for every engine."""
