"""`kv_connector_extra_config` of the plug-in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from systems.aqua.paging import COPIES, FALLBACKS


@dataclass(kw_only=True, slots=True, frozen=True)
class Settings:
    """The keys and their defaults."""

    slice_iterations: int = 0  # k of section 7; must be given
    copies: str = "gathered"  # or by_block, as vLLM's swap copies
    fcfs_when_in_dram: str = "never"  # section 7's fallback: never, any, all (of paged-out KV)
    coordinator: str | None = None  # its URL; None: KV is paged to host memory
    device: str = "consumer"  # in the coordinator's topology; of several ranks each is NAME.RANK
    migrate_every_iterations: int = 10  # n of section 6: an assumption

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Self:
        """Raises ValueError for unknown keys and values."""
        names = [each.name for each in fields(cls)]
        if unknown := set(extra) - set(names):
            raise ValueError(f"unknown key {min(unknown)!r}; valid keys: {', '.join(names)}")
        found = cls(**extra)
        for name in ("slice_iterations", "migrate_every_iterations"):
            number = getattr(found, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(
                    f"{name}={number!r} in kv_connector_extra_config; valid: a whole number of at "
                    "least 1"
                )
        for name, valid in (("copies", COPIES), ("fcfs_when_in_dram", FALLBACKS)):
            if getattr(found, name) not in valid:
                raise ValueError(
                    f"{name}={getattr(found, name)!r} in kv_connector_extra_config; valid: "
                    f"{', '.join(valid)}"
                )
        return found


def of_ranks(name: str, num_ranks: int) -> list[str]:
    """The names of a device's tensor-parallel ranks in the coordinator's topology."""
    return [name] if num_ranks == 1 else [f"{name}.{rank}" for rank in range(num_ranks)]
