"""Serves one model: its prompts, load, policy, scaler and live pairs.

The services of a run share GPUs, network and the parameter pool.
"""

from __future__ import annotations

from harness.cluster import Cluster
from harness.elastic.instance import ElasticInstance
from harness.request import Request
from systems.blitzscale.config import Config
from systems.blitzscale.handover import kv_tokens
from systems.blitzscale.instances import LOADED, Fleet, Role, State
from systems.blitzscale.loads import Loads
from systems.blitzscale.pairing import Pairing
from systems.blitzscale.parameters import DataPlane
from systems.blitzscale.policy import Monitor, Seen, fixed, make_policy, profiled
from systems.blitzscale.scaler import Scaler
from systems.blitzscale.serving import Prompts, Serving


class Service:
    """The service of one model."""

    def __init__(
        self, config: Config, fleet: Fleet, data_plane: DataPlane, cluster: Cluster
    ) -> None:
        self.fleet = fleet
        self.ranges = config.ranges(len(fleet.slots), models=1 + len(fleet.others))
        self._config, self._loop, self._cluster = config, fleet.loop, cluster
        self._data_plane = data_plane
        self.prompts = Prompts(config.batch_tokens)
        self._serving = Serving(fleet, self.prompts)
        self._monitor = Monitor(config.window_s)
        self._capacity = profiled(config, fleet)
        self._policy = make_policy(config, self._capacity, self.ranges)
        self._fixed = fixed(self.ranges)
        rate = self._capacity.prefill_tokens_per_s
        self._pairing = Pairing(config, self._serving, self._monitor, rate)
        self.loads = Loads(self._serving, data_plane, self._pairing)
        self.scaler = Scaler(config, self.ranges, self._serving, data_plane, self.loads)

    def begin(self) -> None:
        """Starts serving with the instances that have weights from the start."""
        roles = [role for role, of_role in self.ranges.items() for _ in range(of_role.least)]
        there = [slot for slot in self.fleet.slots if slot.instance.resident]
        for slot, role in zip(there, roles, strict=True):
            slot.role = role
            self.loads.loaded(slot)

    def submit(self, request: Request) -> None:
        """Drops a request whose KV does not fit on an instance."""
        if kv_tokens(request) > self._capacity.kv_tokens:
            reason = f"its KV of {kv_tokens(request)} tokens does not fit on an instance"
            self._cluster.drop(request, reason)
            return
        self._monitor.arrived(self._loop.now, request.prompt_tokens)
        self._serving.submit(request)

    def lost(self, instance: ElasticInstance) -> None:
        """Tells that an instance has died."""
        self.fleet.changed()
        slot = self.fleet.named(instance.name)
        if slot.state in LOADED:
            self._data_plane.released(slot)
        self._serving.handover.lost(instance)
        for each in self.fleet.slots:  # one of them may wait for it
            each.notify()

    def step(self, *, may_grow: bool = True) -> None:
        """One look of the monitor and what follows from it. may_grow: as in `Scaler.scale`."""
        self.scaler.retire()
        self._data_plane.upkeep()
        wanted = self._fixed or self._policy.wanted(self._look())
        self.scaler.scale(*wanted, may_grow=may_grow)
        self._pairing.look()

    def _look(self) -> Seen:
        """Observes the model now."""
        fleet, now_s, colocated = self.fleet, self._loop.now, self._config.colocation
        sending, decoding = [fleet.of(role, State.SERVING) for role in (Role.PREFILL, Role.DECODE)]
        loading = [fleet.of(role, State.LOADING) for role in (Role.PREFILL, Role.DECODE)]
        held = sum(slot.tokens for slot in decoding) + self._serving.handover.waiting_tokens
        if colocated:  # prompts wait for the same room
            held += self.prompts.kv_tokens
        return Seen(
            now_s=now_s,
            prompt_tokens_per_s=self._monitor.tokens_per_s(now_s),
            queued_tokens=self.prompts.tokens + self._pairing.queued_tokens,
            kv_tokens=held,
            prefills=len(sending) + len(loading[0]),
            sending=len(sending),
            decodes=0 if colocated else len(decoding) + len(loading[1]),
            loading=(bool(loading[0]), bool(loading[1])),
            leaving_tokens=sum(slot.tokens for slot in sending),
            moving_tokens=self._serving.handover.moving_tokens,
        )
