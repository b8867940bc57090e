"""`engine` of engine=torch: its keys, each checked."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from harness.configuration.checks import at_least, one_of, positive, require
from harness.configuration.threads import most_threads
from harness.engine.attention_choice import check_choice
from harness.engine.ray_launcher import CLUSTERS
from harness.pooled.plan import PoolConfig

DEVICES = ("auto", "cpu", "cuda")
TRANSPORTS = ("sockets", "nixl")
WARM_UP_TOKENS = 2048  # of a batch, vLLM's default: larger ones pay when they come
AT_LEAST_ONE = ("block_tokens", "num_kv_blocks", "cpu_kv_bytes", "num_threads")


@dataclass(kw_only=True, slots=True)
class TorchPoolConfig(PoolConfig):
    cpu_device_bytes: int  # memory of a pooled instance on a CPU; on a GPU: its share of the GPU's
    stage_buffer_bytes: int  # of each instance, in host memory
    link_bytes_per_s: float | None  # of each direction of each bus; null: what the machine gives

    def __post_init__(self) -> None:
        PoolConfig.__post_init__(self)
        at_least(self, 4096, "", "stage_buffer_bytes")
        positive(self, "", "link_bytes_per_s")
        slab, kv = self.host_slab_bytes, self.host_kv_bytes
        require(slab <= kv, f"host_slab_bytes={slab} is more than host_kv_bytes={kv}")


@dataclass(kw_only=True, slots=True)
class TorchElasticConfig:
    paced: bool  # links take as long as the hardware profile's would; else what this machine takes
    layer_s: float  # a layer's computation takes at least so long
    token_s: float  # and at least so long for each token of the batch
    chunk_bytes: int  # of copies of weights and KV
    host_kv_bytes: int  # of each node's DRAM, for KV

    def __post_init__(self) -> None:
        at_least(self, 0, "", "layer_s", "token_s")
        at_least(self, 1, "", "chunk_bytes", "host_kv_bytes")


@dataclass(kw_only=True, slots=True)
class TorchConfig:
    device: str  # auto, cpu or cuda
    attention: str  # auto, torch, vllm or flashinfer: whose kernels; auto is torch today
    block_tokens: int
    num_kv_blocks: int | None  # per instance; null: as many as the memory below holds
    memory_fraction: float  # of a GPU's memory, for weights and KV of all its instances
    cpu_kv_bytes: int  # KV memory per instance on a CPU
    num_threads: int | None  # CPU threads per worker; null: all cores but one, divided
    start_timeout_s: float
    hang_timeout_s: float  # silence after which a worker counts as hung
    step_timeout_s: float  # the longest that one iteration, load or drop may take
    pool: TorchPoolConfig  # of systems whose models share instances
    elastic: TorchElasticConfig  # of systems whose weights and KV move
    cluster: str = "local"  # local: all nodes are this host; ray: those of a Ray cluster
    transport: str = "sockets"  # of weights and KV between elastic workers: sockets or nixl

    def __post_init__(self) -> None:
        one_of(self.device, DEVICES, "engine.device")
        one_of(self.cluster, CLUSTERS, "engine.cluster")
        one_of(self.transport, TRANSPORTS, "engine.transport")
        there = self.transport == "sockets" or find_spec("nixl") is not None
        require(there, "engine.transport=nixl needs NIXL, which is not installed: pip install nixl")
        if self.cluster == "ray":
            known = self.device != "auto"  # nodes may differ from this host
            require(known, "engine.cluster=ray with engine.device=auto; valid: cpu, cuda")
            given = self.num_threads is not None
            require(given, "engine.cluster=ray needs engine.num_threads: nodes' cores may differ")
        at_least(self, 1, "engine", *AT_LEAST_ONE)
        check_choice(self.attention, self.device, self.block_tokens)
        threads, most = self.num_threads, most_threads()
        told = f"engine.num_threads={threads} must be at most {most}, the cores here for an engine"
        fits = threads is None or threads <= most
        require(fits or self.cluster == "ray", told)
        positive(self, "engine", "start_timeout_s", "hang_timeout_s", "step_timeout_s")
        share = self.memory_fraction
        require(0 < share <= 1, f"engine.memory_fraction={share} must be above 0 and at most 1")
