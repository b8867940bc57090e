"""AQUA's coordinator (sections 6 and 8): who lends memory to whom, as a ledger and as a server."""
