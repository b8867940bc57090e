"""AQUA's coordinator (sections 6 and 8): which device lends memory to which; ledger and server."""
