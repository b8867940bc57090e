"""Instances whose weights and KV move: what BlitzScale §5, KunServe §4 and AQUA §4 need, once."""
