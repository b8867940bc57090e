"""AQUA's fair scheduler inside real vLLM 0.32: a scheduler class and a KV connector."""
