"""Serves one model: its slots, load, policy, prompts and live pairs.

The services of a run share GPUs, network and the parameter pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from harness.clock import Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.model_spec import ModelSpec
from harness.request import Request
from systems.blitzscale.config import Config
from systems.blitzscale.demand import ArtifactPolicy, ColocatedPolicy, PaperPolicy, Seen
from systems.blitzscale.fabric import Fabric
from systems.blitzscale.monitor import Monitor
from systems.blitzscale.pairing import Pairing
from systems.blitzscale.parameters import Parameters
from systems.blitzscale.policy import Range, capacity_of
from systems.blitzscale.prompts import Prompts, kv_tokens
from systems.blitzscale.role import Role
from systems.blitzscale.scaler import Policy, Scaler
from systems.blitzscale.serving import Serving
from systems.blitzscale.shutdown import State
from systems.blitzscale.slots import Fleet

MakeParameters = Callable[[list[float]], Parameters]


@dataclass(slots=True, frozen=True)
class Served:
    """A model, and the names that requests have for it."""

    key: str  # its name in the pool and at the hosts
    spec: ModelSpec
    names: tuple[str, ...]


def served(models: Mapping[str, ModelSpec]) -> list[Served]:
    """The models of a run. Names with equal specs are one model; different specs are different
    models, even if they have the same name."""
    found: list[tuple[ModelSpec, list[str]]] = []
    for name, spec in models.items():
        same = next((names for other, names in found if other == spec), None)
        if same is None:
            found.append((spec, [name]))
        else:
            same.append(name)
    called = [spec.name for spec, _ in found]
    return [
        Served(spec.name if called.count(spec.name) == 1 else names[0], spec, tuple(names))
        for spec, names in found
    ]


class Service:
    """The service of one model.

    ranges: how many instances of each role it may have. parameters: makes its data plane, given the
    bytes of each layer.
    """

    def __init__(
        self, model: Served, fleet: Fleet, config: Config, ranges: Mapping[Role, Range],
        fabric: Fabric, parameters: MakeParameters, elastic: ElasticCluster, cluster: Cluster,
        loop: Loop,
    ) -> None:  # fmt: skip
        self.model, self.fleet, self.ranges = model, fleet, ranges
        self._config, self._loop, self._cluster, self._elastic = config, loop, cluster, elastic
        self.prompts = Prompts(config.batch_tokens)
        self._serving = Serving(fleet, elastic, self.prompts, loop)
        self._monitor = Monitor(config.window_s)
        spec, layout = model.spec, fleet.slots[0].instance.layout
        layers_bytes = [float(len(at) * spec.tp) for at in layout.layer_at]
        self._kv_tokens = layout.num_pages() // layout.num_groups * layout.block_tokens
        self._capacity = capacity_of(
            cluster.profile, spec, batch_tokens=config.batch_tokens, kv_tokens=self._kv_tokens
        )
        self._pairing = Pairing(
            config, fleet, fabric, self._serving, cluster, elastic, spec, layers_bytes, loop,
            self._capacity.prefill_tokens_per_s, self._arriving,
        )  # fmt: skip
        self._parameters = parameters(layers_bytes)
        self.scaler = Scaler(
            config, ranges, fleet, elastic, fabric, self._parameters, self._serving,
            self._policy(elastic.hardware, layout.block_tokens), loop, self._look, self._pairing,
        )  # fmt: skip

    def begin(self) -> None:
        """Starts serving with the instances that have weights from the start."""
        roles = [role for role, of_role in self.ranges.items() for _ in range(of_role.least)]
        there = [slot for slot in self.fleet.slots if slot.instance.resident]
        for slot, role in zip(there, roles, strict=True):
            slot.role = role
            self._elastic.take(slot.instance, slot.role.value)
            self._parameters.deployed(slot)
            self._serving.begin(slot)

    def submit(self, request: Request) -> None:
        """Drops a request whose KV does not fit on an instance."""
        if kv_tokens(request) > self._kv_tokens:
            self._cluster.drop(
                request, f"its KV of {kv_tokens(request)} tokens does not fit on an instance"
            )
            return
        self._monitor.arrived(self._loop.now, request.prompt_tokens)
        self._serving.submit(request)

    def lost(self, instance: ElasticInstance) -> None:
        """Tells that an instance has died."""
        slot = self.fleet.named(instance.name)
        slot.gone = True
        self._parameters.lost(slot)
        self._serving.handover.lost(slot)
        for each in self.fleet.slots:  # one of them may wait for it
            each.rouse()

    def _policy(self, hardware: Hardware, block_tokens: int) -> Policy:
        if self._config.colocation:
            return ColocatedPolicy(self._config, self._capacity, self.ranges[Role.COLOCATED])
        prefills, decodes = self.ranges[Role.PREFILL], self.ranges[Role.DECODE]
        spec = self.model.spec
        nics_bytes_per_s = hardware.nic_bytes_per_s * spec.tp
        transfer_per_s = nics_bytes_per_s / spec.held_kv_bytes_per_token
        if self._config.variant == "paper":
            if hardware.num_nodes == 1 or not transfer_per_s:  # KV crosses no NIC
                transfer_per_s = inf
            return PaperPolicy(self._config, self._capacity, prefills, decodes, transfer_per_s)
        return ArtifactPolicy(
            self._config, self._capacity, prefills, decodes, block_tokens, transfer_per_s
        )

    def _look(self) -> Seen:
        decodes = self.fleet.of(Role.DECODE, State.SERVING)
        held = sum(slot.tokens for slot in decodes) + self._serving.handover.waiting_tokens
        if self._config.colocation:  # prompts wait for the same room
            held += self.prompts.kv_tokens
        now_s = self._loop.now
        return Seen(
            now_s=now_s,
            load=self._monitor.load(now_s, queued_tokens=self._queued_tokens(), kv_tokens=held),
            prefills=self.fleet.count(Role.PREFILL),
            decodes=0 if self._config.colocation else self.fleet.count(Role.DECODE),
            loading=(
                bool(self.fleet.of(Role.PREFILL, State.LOADING)),
                bool(self.fleet.of(Role.DECODE, State.LOADING)),
            ),
            sending=len(self.fleet.of(Role.PREFILL, State.SERVING)),
            leaving_tokens=sum(s.tokens for s in self.fleet.of(Role.PREFILL, State.SERVING)),
            moving_tokens=self._serving.handover.moving_tokens,
        )  # fmt: skip

    def _arriving(self) -> float:
        return self._look().load.prompt_tokens_per_s

    def _queued_tokens(self) -> int:
        """Tokens of waiting prompts, those in live pairs included."""
        return self.prompts.tokens + self._pairing.queued_tokens
