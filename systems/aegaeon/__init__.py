"""Aegaeon (SOSP'25): many models take turns on pooled instances, token by token."""
