"""What a system asks of an engine before it starts: which instances there are to be, and where.

A system's `place` is a pure function of its configuration, the models and the hardware; the
engine brings up what it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.configuration.checks import require
from harness.cost.hardware import Hardware
from harness.cost.profile import HardwareProfile
from harness.model_spec import ModelSpec


class Profile(Protocol):
    """What was measured of the models on this hardware before the run, for a system's estimates
    (Aegaeon A.2: "profiled data"). Seconds."""

    pcie_peak_bytes_per_s: float  # from host memory to one device, nominal
    pcie_bytes_per_s: float  # the same, achieved
    ssd_bytes_per_s: float  # from its node's SSDs to one device

    def prefill_s(self, model: ModelSpec, prompt_tokens: int) -> float:
        """The time of one prompt by itself."""

    def decode_step_s(self, model: ModelSpec, num_requests: int, context_tokens: int) -> float:
        """The time of an iteration of `num_requests` that attend to `context_tokens` in all."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Elastic:
    """What is particular to an instance whose weights and KV move (`harness.elastic.instance`)."""

    page_layers: int | None = None  # consecutive layers whose KV moves as one; None: all
    resident: range | None = None  # layers that are there at time 0; None: all; range(0): a slot
    kv_across: bool = False  # a request may be larger than one instance: layers make room for it


@dataclass(kw_only=True, slots=True, frozen=True)
class Placement:
    """One instance. With a `model` it serves that one for good (`Cluster.instances`), or is
    `elastic` (`Cluster.elastic`); without one it is pooled: models take turns on it
    (`Cluster.pool`)."""

    devices: range  # of one node
    model: str | None  # by the name that requests carry
    own: ModelSpec | None = None  # of a model that no request names, as of one that only lends
    compute_share: float = 1.0  # of each device's multiprocessors
    prefill_compute_share: float = 1.0  # the same for iterations with prompts
    memory_share: float = 1.0  # of each device's memory
    elastic: Elastic | None = None
    gained_bytes: int = 0  # for KV, of all devices: layers come from the host in each iteration


def spec_of(placement: Placement, models: Mapping[str, ModelSpec]) -> ModelSpec:
    """The spec of the model that a placement names; a pooled one names none."""
    if placement.own is not None:
        return placement.own
    assert placement.model is not None, "it is pooled"
    return models[placement.model]


@dataclass(slots=True, frozen=True)
class Demand:
    """What is known of a workload before it arrives: each model's mean requests per second."""

    rates_per_s: Mapping[str, float]  # by the name that requests carry


def dedicated(models: Mapping[str, ModelSpec], hardware: Hardware) -> list[Placement]:
    """A model on each instance that `hardware` has room for: instance i serves model i mod m.

    Raises UsageError where there are fewer instances than models.
    """
    names = list(models)
    width = max(spec.tp for spec in models.values())
    places = within_nodes(width, hardware)
    require(
        len(places) >= len(names),
        f"{len(names)} models need at least {len(names)} instances of {width} devices, but "
        f"hardware={hardware.name} has {hardware.num_devices} devices; raise hardware.num_devices, "
        "or set workload.models.kind=single to send all requests to one model",
    )
    return [
        Placement(devices=devices, model=names[i % len(names)]) for i, devices in enumerate(places)
    ]


def pooled(models: Mapping[str, ModelSpec], hardware: Hardware) -> list[Placement]:
    """Places as many pooled instances as `hardware` has room for, each wide enough for any
    model."""
    width = tensor_parallel(models)
    return [Placement(devices=devices, model=None) for devices in within_nodes(width, hardware)]


def within_nodes(width: int, hardware: Hardware) -> list[range]:
    """Every `width` devices of a node, node by node: tensor parallelism does not cross nodes."""
    per_node = hardware.devices_per_node
    require(
        width <= per_node,
        f"model.tp={width} is wider than a node of hardware={hardware.name}, which has "
        f"{per_node} devices; valid: 1 to {per_node}",
    )
    return [
        range(first, first + width)
        for node in range(hardware.num_nodes)
        for k in range(per_node // width)
        if (first := node * per_node + k * width) + width <= hardware.num_devices
    ]


def tensor_parallel(models: Mapping[str, ModelSpec]) -> int:
    """The models' common tp; UsageError where they differ: a pool is for one parallelism
    configuration (Aegaeon §7.5)."""
    widths = sorted({spec.tp for spec in models.values()})
    require(
        len(widths) == 1,
        f"models of tp {', '.join(map(str, widths))} cannot share one pool: give every model "
        "the same tp, or run a pool for each",
    )
    return widths[0]


def profile_of(hardware: Hardware) -> Profile:
    """What was measured of the hardware before the run, for a `place` that weighs step times."""
    return HardwareProfile(hardware)


def resident_models(placements: Sequence[Placement]) -> list[str]:
    """Each placement's model, for engines that know no pooled instances and no shares."""
    names = [placement.model for placement in placements if placement.model is not None]
    shares = {(p.compute_share, p.prefill_compute_share, p.memory_share) for p in placements}
    pooling = "engine=torch or engine=sim"
    divides = "divides a device's multiprocessors and memory between instances"
    asks = [
        (bool(shares - {(1.0, 1.0, 1.0)}), divides, "engine=sim"),
        (any(p.elastic for p in placements), "moves weights and KV between instances", pooling),
        (len(names) < len(placements), "shares instances between models", pooling),
    ]
    for asked, what, engines in asks:
        require(not asked, f"this system {what}, which this engine cannot do: choose {engines}")
    assert not any(placement.own for placement in placements), "of elastic ones alone"
    return names
