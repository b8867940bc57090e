"""Values of an engine's configuration that must lie above 0, whichever engine it is."""

from __future__ import annotations

from math import inf

from harness.errors import UsageError


def require_positive(config: object, *keys: str) -> None:
    """Raises UsageError for the first of `keys` that is not a finite number above 0.

    None passes: it leaves the choice to the server.
    """
    for key in keys:
        value = getattr(config, key)
        if value is not None and not 0 < value < inf:
            raise UsageError(f"engine.{key}={value:g} must be more than 0 and finite")
