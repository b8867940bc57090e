"""A hardware profile: the constants of `conf/hardware/<name>.yaml`, each with its source there.

A cluster of equal nodes with equal devices. Link rates are one direction's. What its devices
achieve of their peaks, and what an eager serving engine of 2024 adds, is its `Calibration`; what
they achieve under any engine is its `Silicon`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from harness.configuration.checks import at_least, positive

BASES = ("device law", "datasheet")
MAX_DEVICES = 65_536  # each is an instance of some kB, and a simulated one tens of events a second


@dataclass(kw_only=True, slots=True)
class StepCoefficients:
    """What one iteration of one model takes, term by term (`harness.cost.model` adds them up)."""

    launch_s: float  # the CPU launching every kernel, while the GPU works: eager mode's floor
    weights_s: float  # reading the weights once
    token_s: float  # the matrix products of one token
    attend_s: float  # one query attending to one key, in every layer, in a prefill
    context_s: float  # one token of context read by a decode
    prefill_s: float  # an iteration with prompts: all that depends on nothing
    decode_s: float  # an iteration without
    chunk_s: float  # each prompt in an iteration
    request_s: float  # each decoding request in an iteration
    wide_s: float  # more than WIDE_BATCH decoding requests


@dataclass(kw_only=True, slots=True)
class Calibration:
    """What measurements taught about a device and the engine on it.

    The efficiencies are shares of the datasheet's peaks, the times per iteration are the
    engine's. Together they predict any model; `measured` holds the models fitted by themselves,
    keyed by `pair_key(model, tp)`.
    """

    basis: str  # "device law" where this device was measured, "datasheet" where it was not
    memory_efficiency: float  # of the memory bandwidth, reading weights
    compute_efficiency: float  # of the FLOP/s, in matrix products
    attention_efficiency: float  # of the FLOP/s, in prefill attention
    kv_efficiency: float  # of the memory bandwidth, reading KV in decode attention
    decode_attention_efficiency: float  # of the FLOP/s, in decode attention
    launch_layer_s: float  # launching one layer's kernels
    launch_layer_tp_s: float  # what tensor parallelism adds to that
    prefill_s: float  # as in StepCoefficients, for every model
    decode_s: float
    chunk_s: float
    request_s: float
    request_context_tokens: float  # read for each decoding request, however short its context
    wide_share: float  # StepCoefficients.wide_s as a share of weights_s
    turnaround_s: float  # one `execute` besides its iterations: policy, messages, batch; 0: unknown
    measured: dict[str, StepCoefficients]
    path_s: float = 0.0  # a server's API, from client to engine and back; it delays tokens alone

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise ValueError(f"basis={self.basis} is unknown; valid: {', '.join(BASES)}")
        constants = asdict(self)
        check_constants(constants)
        for pair, coefficients in constants["measured"].items():
            check_constants(coefficients, where=f"measured.{pair}.")


@dataclass(kw_only=True, slots=True)
class Silicon:
    """Shares of a datasheet's peaks that kernels reach, and times of what has no peak."""

    basis: str  # what it was learned from: "kernel profiles", "served batches" or "datasheet"
    products_tokens: list[float]  # ascending: where products_efficiency is known
    products_efficiency: list[float]  # of the roofline, at so many tokens; log-linear between
    layer_s: float  # a layer's small kernels, and the start of its attention
    attention_efficiency: float  # of the FLOP/s, in prefill attention
    fewest_queries: float  # of a chunk: attention of fewer takes as long
    kv_efficiency: float  # of the memory bandwidth, where decodes are alone
    mixed_kv_efficiency: float  # the same beside prompts
    sequence_layer_s: float  # each decode's attention in a layer, besides reading its KV
    sequence_s: float  # sampling from one sequence

    def __post_init__(self) -> None:
        check_constants(asdict(self))
        tokens, shares = self.products_tokens, self.products_efficiency
        if not tokens or len(tokens) != len(shares):
            raise ValueError("products_tokens and products_efficiency must be of equal length")
        if sorted(set(tokens)) != tokens or tokens[0] < 1:
            raise ValueError(f"products_tokens={tokens} must ascend from at least 1")
        if not all(share > 0 for share in shares):
            raise ValueError(f"products_efficiency={shares} must be above 0")


@dataclass(kw_only=True, slots=True)
class Hardware:
    """`num_devices` equal devices (GPUs, or CPU slots on a machine without one)."""

    name: str
    device: str  # what one device is, e.g. "A100-SXM4-80GB"
    num_devices: int
    devices_per_node: int
    memory_bytes: int  # per device
    memory_bandwidth_bytes_per_s: float
    dense_flop_per_s: float  # at the model's dtype, without sparsity
    nvlink_bytes_per_s: float  # per device, for collectives; 0: a node's devices meet over PCIe
    nvlink_latency_s: float  # of an all-reduce of two devices of a node
    nvlink_copy_bytes_per_s: float  # achieved by a copy from one device to another; 0: no NVLink
    nvlink_copy_latency_s: float  # of such a copy
    pcie_peak_bytes_per_s: float  # host memory to one device, nominal; measured: as the next
    pcie_bytes_per_s: float  # the same, achieved
    pcie_latency_s: float  # of one transfer between host memory and a device
    gpus_per_pcie_switch: int  # devices that share pcie_bytes_per_s; hosts differ
    nic_bytes_per_s: float  # each device's share of its node's network cards
    nic_latency_s: float  # of one transfer between two nodes
    leaf_oversubscription: float  # a leaf switch's downlinks over its uplinks; 1: none
    ssd_bytes_per_s: float  # each device's share of its node's SSDs, reading
    ssd_latency_s: float  # of one read
    # Consecutive devices that NVLink joins, and whose NICs share a leaf switch; None: a node's
    devices_per_domain: int | None = None
    devices_per_leaf: int | None = None
    # From a device to one of its node in another domain; None: as pcie_bytes_per_s
    peer_bytes_per_s: float | None = None
    devices_per_ssd: int | None = None  # devices that share what their SSDs give; None: a node's
    host_memory_bytes: int  # per node
    source: str
    calibration: Calibration
    silicon: Silicon | None = None  # null: not known, as of a CPU
    nodes: list[str] | None = None  # addresses in a Ray cluster, in order; None: Ray chooses

    def __post_init__(self) -> None:
        above_0 = (
            "num_devices", "devices_per_node", "memory_bytes", "memory_bandwidth_bytes_per_s",
            "dense_flop_per_s", "pcie_peak_bytes_per_s", "pcie_bytes_per_s",
            "gpus_per_pcie_switch", "leaf_oversubscription",
        )  # fmt: skip
        check_constants(asdict(self), above_0=above_0)
        at_least(self, 1, "", "devices_per_ssd", "devices_per_domain", "devices_per_leaf")
        positive(self, "", "peer_bytes_per_s")
        for name in ("num_devices", "devices_per_node", "gpus_per_pcie_switch"):
            if getattr(self, name) > MAX_DEVICES:
                raise ValueError(f"{name}={getattr(self, name)} must be at most {MAX_DEVICES}")
        if self.nodes is not None and len(self.nodes) != self.num_nodes:
            raise ValueError(f"nodes names {len(self.nodes)} nodes; valid: {self.num_nodes}")
        if self.nodes is not None and len({*self.nodes}) < len(self.nodes):
            raise ValueError(f"nodes=[{', '.join(self.nodes)}] names a node twice")

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.devices_per_node)


def pair_key(model: str, tp: int) -> str:
    """The name of a measured pair in `Calibration.measured`, e.g. llama2-13b_tp2."""
    return f"{model}_tp{tp}"


def check_constants(
    constants: Mapping[str, Any], *, above_0: Collection[str] = (), where: str = ""
) -> None:
    """ValueError for a number of `constants` that is negative or not finite, or that is 0 and an
    efficiency or in `above_0`. What is no number is left to others; `where` comes before its
    name."""
    for name, value in constants.items():
        if not isinstance(value, (int, float)):
            continue
        not_0 = name in above_0 or name.endswith("_efficiency")
        if not (isfinite(value) and value >= 0 and (value > 0 or not not_0)):
            least = "above 0" if not_0 else "of at least 0"
            raise ValueError(f"{where}{name}={value} must be a finite number {least}")
