"""What systems serve with, once for all of them: the iteration, the replica loop, KV on its way."""
