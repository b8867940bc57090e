"""The profile of a model: producer or consumer, and of how many bytes (section 4).

AQUA-LIB starts with it, and the placer takes R_m from it. A profile is a JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from harness.configuration.checks import at_least, one_of
from harness.configuration.config import typed
from harness.errors import UsageError
from harness.files import read_json, write_text
from systems.aqua.profiler.plateau import Plateau
from systems.aqua.profiler.stable_rate import StableRate

ROLES = ("producer", "consumer")


@dataclass(kw_only=True, slots=True)
class Burst:
    """What a burst of requests needs."""

    factor: float  # of the stable rate
    swap_bytes: int  # of each shard


@dataclass(kw_only=True, slots=True)
class MemoryProfile:
    """The profile. Bytes are of each of the model's `shards` devices. Raises ValueError for values
    that do not fit together."""

    model: str
    hardware: str
    shards: int  # the tensor-parallel width
    role: str  # producer or consumer
    memory_balance: int  # bytes, R_m of section 5: what it can lend; below 0: what it needs
    free_bytes: int  # at peak throughput, or at the stable rate
    peak_batch: int | None = None  # of image and audio models
    stable_rate_per_s: float | None = None  # of LLMs
    bursts: list[Burst] = field(default_factory=list)  # of consumers
    workload: str | None = None  # served by LLMs while profiled
    rule: str | None = None  # of the stable rate: SLA; steady queue if no rate meets the SLA
    made_by: dict[str, Any] = field(default_factory=dict)  # the command, its runs, the code

    @property
    def name(self) -> str:
        """The name of an LLM's file, by which experiments ask for it."""
        return f"{self.model}-tp{self.shards}-{self.hardware}-{self.workload}"

    def __post_init__(self) -> None:
        one_of(self.role, ROLES, "role")
        at_least(self, 1, "", "shards")
        if (self.memory_balance < 0) != (self.role == "consumer"):
            raise ValueError(
                f"memory_balance={self.memory_balance} of a {self.role}; valid: below 0 for "
                "consumers, at least 0 for producers"
            )
        rate = self.stable_rate_per_s
        if rate is not None and not (isfinite(rate) and rate > 0):
            raise ValueError(f"stable_rate_per_s={rate} must be finite and above 0")


def generator_profile(
    model: str, hardware: str, found: Plateau, producer_above_bytes: int
) -> MemoryProfile:
    """The profile of an image or audio model: it can lend what is free at its peak.

    producer_above_bytes: with no more than this free, it lends nothing.
    """
    free = found.peak.free_bytes
    return MemoryProfile(
        model=model,
        hardware=hardware,
        shards=1,
        role="producer",
        memory_balance=free if free > producer_above_bytes else 0,
        free_bytes=free,
        peak_batch=found.peak.batch,
    )


def llm_profile(
    model: str,
    hardware: str,
    shards: int,
    found: StableRate,
    producer_above_bytes: int,
    swap: Callable[[], tuple[list[Burst], int]],
) -> MemoryProfile:
    """The profile of an LLM: a producer if more than `producer_above_bytes` are free at its rate.

    Else `swap` is called: it returns what bursts need, and how many bytes to plan for. A model that
    needs none is a producer that lends nothing. Raises UsageError if the model meets its SLA at no
    rate that was tried.
    """
    if found.best is None:
        rates = sorted(sample.rate_per_s for sample in found.samples)
        raise UsageError(
            f"{model} on {hardware} meets its SLA at none of {len(rates)} rates from "
            f"{rates[0]:g} to {rates[-1]:g} requests/s"
        )
    free = found.best.free_bytes
    lends = free > producer_above_bytes
    bursts, planned = ([], 0) if lends else swap()
    return MemoryProfile(
        model=model,
        hardware=hardware,
        shards=shards,
        role="consumer" if planned else "producer",
        memory_balance=free if lends else -planned,
        free_bytes=free,
        stable_rate_per_s=found.best.rate_per_s,
        bursts=bursts,
    )


def swap_demand(
    measure: Callable[[float], int], stable_rate_per_s: float, factors: Sequence[float],
    planned: float,
) -> tuple[list[Burst], int]:  # fmt: skip
    """(artificial bursts, bytes of the planned one) (sections 4.1 and 9.4).

    measure: the most bytes of a shard that are paged out while requests come at a rate for a
    minute. factors: of the stable rate. planned: one of them; else UsageError.
    """
    if planned not in factors:
        raise UsageError(
            f"planned_burst={planned:g} is not profiled; valid: {', '.join(map(str, factors))}"
        )
    bursts = [Burst(factor=f, swap_bytes=measure(f * stable_rate_per_s)) for f in factors]
    return bursts, next(each.swap_bytes for each in bursts if each.factor == planned)


def context_bytes(num_prompts: int, longest_tokens: int, kv_bytes_per_token: int) -> int:
    """Swap space for long prompts and cached prefixes (section 4.1): computed, not measured."""
    return num_prompts * longest_tokens * kv_bytes_per_token


def write_profile(path: Path, profile: MemoryProfile) -> None:
    """Writes the file at once: a reader sees the whole new file, or what was there before."""
    write_text(path, json.dumps(asdict(profile), indent=1) + "\n")


def read_profile(path: Path) -> MemoryProfile:
    """Raises UsageError if the file is no profile; the message says what is wrong."""
    return typed(read_json(path), MemoryProfile, f"profile {path}")
