"""How long an iteration takes: hardware, law, terms."""
