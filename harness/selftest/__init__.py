"""Whether this harness measures rightly, on this machine: tests against a server whose answers and
times are known."""
