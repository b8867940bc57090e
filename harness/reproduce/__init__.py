"""Papers' figures and claims made again, and held against what is committed."""
