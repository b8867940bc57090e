"""The keys of `conf/system/vllm.yaml`.

This file is not compiled: OmegaConf reads type annotations that mypyc does not keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.configuration.checks import one_of
from systems.baselines.routers import ROUTERS, PrefixConfig
from systems.baselines.swap import PREEMPTION, SwapConfig


@dataclass(kw_only=True, slots=True)
class VllmConfig:
    """Raises ValueError if `preemption` is unknown. `Limits` has the meaning of the first five."""

    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    scheduler_reserve_full_isl: bool
    enable_prefix_caching: bool
    preemption: str = "recompute"  # | kv_swap | parameter_swap
    swap: SwapConfig | None = None  # for kv_swap and parameter_swap
    router: str = "round_robin"  # | least_loaded | prefix_aware
    prefix: PrefixConfig | None = None  # for prefix_aware

    def __post_init__(self) -> None:
        one_of(self.preemption, PREEMPTION, "system.preemption")
        one_of(self.router, ROUTERS, "system.router")
