"""What `conf/system/vllm.yaml` has.

A file of its own, which stays Python: OmegaConf reads types that mypyc does not keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from systems.baselines.swap import PREEMPTION, SwapConfig


@dataclass(kw_only=True, slots=True)
class VllmConfig:
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    scheduler_reserve_full_isl: bool
    enable_prefix_caching: bool
    preemption: str = "recompute"  # | kv_swap | parameter_swap
    swap: SwapConfig | None = None  # of the last two

    def __post_init__(self) -> None:
        if self.preemption not in PREEMPTION:
            raise ValueError(
                f"system.preemption={self.preemption} is unknown; valid: {', '.join(PREEMPTION)}"
            )
