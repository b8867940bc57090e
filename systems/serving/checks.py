"""The checks of configuration values that systems share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NOTHING: Mapping[str, float] = {}
NO_WORDS: Mapping[str, Sequence[str]] = {}


def check(
    config: object,
    prefix: str,
    *,
    least: Mapping[str, float] = NOTHING,
    positive: Sequence[str] = (),
    words: Mapping[str, Sequence[str]] = NO_WORDS,
) -> None:
    """Raises ValueError for a field of `config` below its least value, not above 0, or that is none
    of its words. Messages name a key as `prefix` and the field's name. A field may be None."""

    def refuse(name: str, why: str) -> ValueError:
        return ValueError(f"{prefix}{name}={getattr(config, name)} {why}")

    for name, valid in words.items():
        if getattr(config, name) not in valid:
            raise refuse(name, f"is unknown; valid: {', '.join(valid)}")
    for name in positive:
        if not getattr(config, name) > 0:
            raise refuse(name, "must be above 0")
    for name, value in least.items():
        found = getattr(config, name)
        if found is not None and not found >= value:
            raise refuse(name, f"must be at least {value}")
