"""What an instance is on every engine: block pools, memory, places, links."""
