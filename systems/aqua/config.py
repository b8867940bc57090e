"""What conf/system/aqua.yaml and constants.yaml say of the system on devices."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from harness.configuration.checks import one_of, positive, require
from systems.aqua.coordinator.coordinator import check_timeout
from systems.aqua.informer import InformerConfig, InformerVariant, Informing
from systems.aqua.paging import COPIES, FALLBACKS

SWAP_SPACES = ("neighbour", "dram")


@dataclass(kw_only=True, slots=True)
class SchedulerVariant:
    slice_iterations: int  # k
    dirty_only: bool  # page out the blocks alone that were written since the last time
    fcfs_when_in_dram: str  # how many tensors make it fall back: any, all or never

    def __post_init__(self) -> None:
        k = self.slice_iterations
        require(k >= 1, f"slice_iterations={k} (k) must be at least 1")
        one_of(self.fcfs_when_in_dram, FALLBACKS, "fcfs_when_in_dram")


@dataclass(kw_only=True, slots=True)
class MigrationVariant:
    whole_leases: bool
    all_or_nothing: bool


@dataclass(kw_only=True, slots=True)
class Variant:
    """The settings in which the paper and its public code differ (README.md, "Variants")."""

    scheduler: SchedulerVariant
    informer: InformerVariant
    migration: MigrationVariant


@dataclass(kw_only=True, slots=True)
class Coordination:
    heartbeat_timeout_s: float
    process: bool  # in a live run, a process of its own; else within the run, as in simulation
    port: int  # a port of 127.0.0.1; 0: any that is free

    def __post_init__(self) -> None:
        check_timeout(self.heartbeat_timeout_s)
        require(0 <= self.port <= 65535, f"port={self.port}; valid: 0 (any) to 65535")


@dataclass(kw_only=True, slots=True)
class Scheduling:
    batch_tokens: int  # b
    block_tokens: int  # the plug-in's block size: devices have the engine's


@dataclass(kw_only=True, slots=True)
class LenderConfig:
    every: int | None  # one of so many requests in a row is the lender's; null: none
    model: dict[str, Any] | None  # a ModelSpec's values; null: the consumer's
    profile: str | None  # the profiler's file of its model; null: the two below
    free_share: float  # share of its KV memory that is free at its stable rate
    stable_rate_per_s: float | None  # null: none is known, so rates are not looked at
    idle_bytes: int  # engine=vllm: what a producer that serves nothing lends

    def __post_init__(self) -> None:
        require(
            self.every is None or self.every >= 2,
            f"every={self.every} must be at least 2: the consumer serves, too",
        )
        share = self.free_share
        require(0 <= share < 1, f"free_share={share:g} must be at least 0 and below 1")
        require(self.idle_bytes >= 1, f"idle_bytes={self.idle_bytes} must be at least 1")


@dataclass(kw_only=True, slots=True)
class ConsumerConfig:
    kv_share: float  # share of its KV memory that it uses
    streams: bool  # one prompt at a time, its KV streamed through the device, as FlexGen's
    overlap: bool  # whether a layer's KV streams in while layers before it are computed
    prefill_caching: bool  # whether common prefixes are kept in the swap space

    def __post_init__(self) -> None:
        share = self.kv_share
        require(0 < share <= 1, f"kv_share={share:g} must be above 0 and at most 1")
        require(
            not (self.streams and self.prefill_caching),
            "prefill_caching=true is of paged prompts; valid with streams: false",
        )


@dataclass(kw_only=True, slots=True)
class ShardLender:
    """One of a consumer's lenders: as many of its shards as this has devices borrow of it. With
    `serves: false` the run has no such model, as it makes images or audio: it only lends."""

    model: str
    free_bytes: int  # of each device, as its profile says
    serves: bool = True

    def __post_init__(self) -> None:
        require(self.free_bytes >= 1, f"free_bytes={self.free_bytes} must be at least 1")


@dataclass(kw_only=True, slots=True)
class PairConfig:
    """A pair of models that the run is asked for, by their own names. Several `consumers` borrow of
    a lender that has a device for each of theirs; a consumer's shards of one of `lenders` each."""

    consumer: str | None = None
    consumers: list[str] | None = None
    lender: str | None = None  # null: lender.model, or the (first) consumer's
    lenders: list[ShardLender] | None = None
    node: int | None = None  # null: wherever there is room, in their order

    def __post_init__(self) -> None:
        require(
            (self.consumer is None) != (not self.consumers),
            f"a pair has consumer={self.consumer} and consumers={self.consumers}; valid: "
            "either consumer: MODEL or consumers: [MODEL, ...]",
        )
        require(
            self.lenders is None
            or (bool(self.lenders) and self.lender is None and self.consumers is None),
            "a pair with lenders has one consumer: MODEL and no lender; valid: lenders: "
            "[{model: MODEL, free_bytes: N}, ...]",
        )
        node = self.node
        require(node is None or node >= 0, f"node={node} of a pair; valid: at least 0")

    @property
    def borrowers(self) -> list[str]:
        return [self.consumer] if self.consumer is not None else self.consumers or []


@dataclass(kw_only=True, slots=True)
class AquaConfig:
    variant: str  # one of `variants`
    variants: dict[str, Variant]
    swap_space: str  # neighbour: leases, and DRAM when they are full or gone; dram
    copies: str  # gathered through a staging tensor, or by_block: each layer's K and V of a block
    copy_issue_s: float  # time between copies by block that are issued one behind another
    dram_bytes: int  # a node's DRAM for paged KV of each device of a consumer; pairs share it
    max_num_seqs: int
    max_num_batched_tokens: int  # the lender's limit on a batch
    pairs: list[PairConfig] | None  # null: one, of the models that there are
    consumer: ConsumerConfig
    lender: LenderConfig
    coordinator: Coordination
    informer: Informing
    scheduler: Scheduling
    profiler: dict[str, Any]  # settings for the profiler, which runs before
    placer: dict[str, Any]

    def __post_init__(self) -> None:
        positive(self, "", "copy_issue_s")
        require(
            self.pairs != [], "pairs=[] names none; valid: null, or at least one {consumer: MODEL}"
        )
        one_of(self.variant, self.variants, "variant", "choose one of")
        one_of(self.swap_space, SWAP_SPACES, "swap_space", "choose one of")
        one_of(self.copies, COPIES, "copies", "choose one of")
        self.informer_config()  # raises for values that cannot be

    @property
    def own(self) -> Variant:
        """The settings that the chosen variant alone has."""
        return self.variants[self.variant]

    def informer_config(self) -> InformerConfig:
        return InformerConfig(**asdict(self.informer), **asdict(self.own.informer))
