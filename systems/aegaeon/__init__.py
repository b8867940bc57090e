"""Aegaeon (SOSP'25): models take turns on pooled instances, token by token."""
