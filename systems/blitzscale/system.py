"""The system that `conf/system/blitzscale.yaml` and its baselines' files name."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.device.elastic import ElasticInstance
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, within_nodes
from harness.request import Request
from systems.blitzscale import config as settings
from systems.blitzscale.demand import ArtifactPolicy, ColocatedPolicy, PaperPolicy, Seen
from systems.blitzscale.fabric import fabric_of
from systems.blitzscale.monitor import Monitor
from systems.blitzscale.pairing import Pairing
from systems.blitzscale.parameters import CachedParameters, NetworkParameters
from systems.blitzscale.policy import capacity_of
from systems.blitzscale.prompts import Prompts, kv_tokens
from systems.blitzscale.role import Role
from systems.blitzscale.scaler import Policy, Scaler
from systems.blitzscale.serving import Serving
from systems.blitzscale.shutdown import State
from systems.blitzscale.slots import Fleet, Slot


class BlitzScale:
    Config = settings.Config

    @staticmethod
    def place(
        config: settings.Config, models: Mapping[str, ModelSpec], hardware: Hardware,
        demand: Demand,
    ) -> list[Placement]:  # fmt: skip
        """Prefills first, then decodes, or instances that do both; then empty slots."""
        model = only_model(models)
        if hardware.num_nodes > 1 and not hardware.nic_bytes_per_s > 0:
            raise UsageError(
                f"hardware={hardware.name} has no network between its {hardware.num_nodes} nodes "
                "(nic_bytes_per_s=0), which KV and parameters cross: choose hardware that has one"
            )
        room = within_nodes(model.tp, hardware)
        if config.instances is not None:
            if config.instances > len(room):
                raise UsageError(
                    f"system.instances={config.instances} does not fit: hardware={hardware.name} "
                    f"has room for {len(room)} instances of {model.tp} devices"
                )
            room = room[: config.instances]
        least = sum(of_role.least for of_role in config.ranges(len(room)).values())
        return [
            Placement(
                devices=devices, model=next(iter(models)),
                elastic=Elastic(
                    page_layers=1 if config.zigzag else None,  # a batch may be split anywhere
                    resident=None if i < least else range(0),
                ),
            )
            for i, devices in enumerate(room)
        ]  # fmt: skip

    def __init__(self, config: settings.Config, *, loop: Loop, cluster: Cluster) -> None:
        elastic = cluster.elastic
        if elastic is None:
            raise ValueError(
                "system blitzscale needs instances whose weights and KV move: choose engine=torch "
                "or engine=sim"
            )
        self._config, self._loop, self._cluster, self._elastic = config, loop, cluster, elastic
        self._model = only_model(cluster.models)
        hardware = elastic.hardware
        fabric = fabric_of(hardware)
        self._fleet = Fleet(
            [
                Slot(each, tuple(at.devices), at.devices.start // hardware.devices_per_node, loop)
                for each, at in zip(elastic.instances, cluster.placements, strict=True)
            ]
        )
        self._prompts = Prompts(config.batch_tokens)
        self._serving = Serving(self._fleet, elastic, self._prompts, loop)
        self._monitor = Monitor(config.window_s)
        layout = elastic.instances[0].layout
        layers_bytes = [float(len(at) * self._model.tp) for at in layout.layer_at]
        self._kv_tokens = layout.num_pages() // layout.num_groups * layout.block_tokens
        self._capacity = capacity_of(
            cluster.profile, self._model, batch_tokens=config.batch_tokens,
            kv_tokens=self._kv_tokens,
        )  # fmt: skip
        self._pairing = Pairing(
            config, self._fleet, fabric, self._serving, cluster, elastic, self._model,
            layers_bytes, loop, self._capacity.prefill_tokens_per_s, self._arriving,
        )  # fmt: skip
        self._parameters: NetworkParameters | CachedParameters
        if config.parameters == "network":
            self._parameters = NetworkParameters(
                self._fleet, elastic, fabric, self._model, layers_bytes, loop,
                multicast=config.multicast, pruning=config.pruning,
            )  # fmt: skip
        else:
            self._parameters = CachedParameters(
                elastic, fabric, self._model, loop, config.cache_ttl_s,
                everything=config.parameters == "all_cache",
            )  # fmt: skip
        self._scaler = Scaler(
            config, self._fleet, elastic, fabric, self._parameters, self._serving,
            self._policy(hardware, layout.block_tokens), loop, self._look, self._pairing,
        )  # fmt: skip
        elastic.on_lost = self._lost

    def submit(self, request: Request) -> None:
        if kv_tokens(request) > self._kv_tokens:
            self._cluster.drop(
                request, f"its KV of {kv_tokens(request)} tokens is larger than an instance's room"
            )
            return
        self._monitor.arrived(self._loop.now, request.prompt_tokens)
        self._serving.submit(request)

    async def serve(self) -> None:
        ranges = self._config.ranges(len(self._fleet.slots))
        roles = [role for role, of_role in ranges.items() for _ in range(of_role.least)]
        for slot, role in zip(self._fleet.slots, roles, strict=False):
            slot.role = role
            self._elastic.take(slot.instance, slot.role.value)
            self._parameters.deployed(slot)
            self._serving.begin(slot)
        self._loop.spawn(self._scaler.run(), name="scaler")
        await self._loop.wait(Event(self._loop))

    def _policy(self, hardware: Hardware, block_tokens: int) -> Policy:
        ranges = self._config.ranges(len(self._fleet.slots))
        if self._config.colocation:
            return ColocatedPolicy(self._config, self._capacity, ranges[Role.COLOCATED])
        prefills, decodes = ranges[Role.PREFILL], ranges[Role.DECODE]
        nics_bytes_per_s = hardware.nic_bytes_per_s * self._model.tp
        transfer_per_s = nics_bytes_per_s / self._model.held_kv_bytes_per_token
        if self._config.variant == "paper":
            if hardware.num_nodes == 1 or not transfer_per_s:  # KV crosses no NIC
                transfer_per_s = inf
            return PaperPolicy(self._config, self._capacity, prefills, decodes, transfer_per_s)
        return ArtifactPolicy(
            self._config, self._capacity, prefills, decodes, block_tokens, transfer_per_s
        )

    def _look(self) -> Seen:
        decodes = self._fleet.of(Role.DECODE, State.SERVING)
        held = sum(slot.tokens for slot in decodes) + self._serving.handover.waiting_tokens
        if self._config.colocation:  # whose prompts wait for the same room
            held += self._prompts.kv_tokens
        now_s = self._loop.now
        return Seen(
            now_s=now_s,
            load=self._monitor.load(now_s, queued_tokens=self._queued_tokens(), kv_tokens=held),
            prefills=self._fleet.count(Role.PREFILL),
            decodes=0 if self._config.colocation else self._fleet.count(Role.DECODE),
            loading=(
                bool(self._fleet.of(Role.PREFILL, State.LOADING)),
                bool(self._fleet.of(Role.DECODE, State.LOADING)),
            ),
            sending=len(self._fleet.of(Role.PREFILL, State.SERVING)),
            leaving_tokens=sum(s.tokens for s in self._fleet.of(Role.PREFILL, State.SERVING)),
            moving_tokens=self._serving.handover.moving_tokens,
        )  # fmt: skip

    def _arriving(self) -> float:
        return self._look().load.prompt_tokens_per_s

    def _queued_tokens(self) -> int:
        """Of prompts that wait, those in live pairs included."""
        return self._prompts.tokens + self._pairing.queued_tokens

    def _lost(self, instance: ElasticInstance) -> None:
        slot = self._fleet.named(instance.name)
        slot.gone = True
        self._parameters.lost(slot)
        self._serving.handover.lost(slot)
        for each in self._fleet.slots:  # who waits for it must see
            each.rouse()


def only_model(models: Mapping[str, ModelSpec]) -> ModelSpec:
    specs = {spec.name: spec for spec in models.values()}
    if len(models) != 1 or len(specs) != 1:
        raise UsageError(
            f"system blitzscale serves one model, not {len(models)} ({', '.join(sorted(models))}): "
            "set workload.models.kind=single"
        )
    return next(iter(specs.values()))
