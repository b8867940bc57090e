"""Pairs overloaded prefills with instances that load (§5.2, "Selecting instances").

A pair needs an overloaded instance and a chain's tail, which forwards nothing, so that its egress
is free for KV. It also needs a reason: with a stop-the-world load a request would miss its SLO. The
paper judges that by profiles of its Fig. 3; here it is computed from the backlog.

The tails of each plan's chains are remembered, with the times at which their layers are expected.
At each look of the monitor, tails that still load and have no pair are offered to overloaded
prefills without a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from systems.blitzscale.chains import Plan, expected_s
from systems.blitzscale.config import Config
from systems.blitzscale.instances import Role, Slot, State
from systems.blitzscale.live import LivePair
from systems.blitzscale.policy import Monitor
from systems.blitzscale.schedulers import Limits
from systems.blitzscale.serving import Serving


@dataclass(kw_only=True, slots=True, frozen=True)
class Overloaded:
    """A serving instance and its work, in seconds of its own time."""

    name: str
    backlog_s: float  # queued and running
    arriving: float  # seconds of work that arrive per second; 1: as much as it can do

    def stop_latency_s(self, load_s: float) -> float:
        """The longest latency of requests that arrive before the new instance is loaded, in
        seconds.

        The new instance helps only after `load_s`; it then takes half of the remaining work.
        Latency is piecewise linear in the time of arrival. So three arrivals are enough: now, the
        load's end, and the first request that outlasts the load.
        """
        arrivals_s = [0.0, load_s]
        if self.backlog_s < load_s < self.backlog_s + self.arriving * load_s:
            arrivals_s.append((load_s - self.backlog_s) / self.arriving)
        return max(self._latency_s(load_s, at_s) for at_s in arrivals_s)

    def _latency_s(self, load_s: float, at_s: float) -> float:
        """Latency of a request that arrives at `at_s`."""
        ahead_s = max(0.0, self.backlog_s + (self.arriving - 1) * at_s)
        alone_s = load_s - at_s
        return ahead_s if ahead_s <= alone_s else (ahead_s + alone_s) / 2


def selected(
    tails_s: Mapping[str, float], overloaded: Iterable[Overloaded], slo_s: float
) -> list[tuple[str, str]]:
    """(overloaded instance, tail) of each pair: the slowest tail that is left goes to the instance
    with the most backlog.

    tails_s: {tail that may serve live: seconds that it still loads}. There is a pair only if a
    stop-the-world load of the tail would break `slo_s`. If it would not for one instance, it would
    not for instances with less backlog.
    """
    tails = sorted(tails_s.items(), key=lambda each: (-each[1], each[0]))
    pairs: list[tuple[str, str]] = []
    for instance in sorted(overloaded, key=lambda each: (-each.backlog_s, each.name)):
        if len(pairs) < len(tails):
            name, load_s = tails[len(pairs)]
            if instance.stop_latency_s(load_s) > slo_s:
                pairs.append((instance.name, name))
    return pairs


class Pairing:
    """The live pairs of one model. prefill_tokens_per_s: of an instance, as profiled."""

    def __init__(
        self, config: Config, serving: Serving, monitor: Monitor, prefill_tokens_per_s: float
    ) -> None:
        self._config, self._serving, self._monitor = config, serving, monitor
        self._fleet, self._loop = serving.fleet, serving.fleet.loop
        self._rate = prefill_tokens_per_s
        self._limits = Limits(config.scheduler, config.ilp_solving_s, self._loop, config.in_flight)
        self._ready_s: dict[str, list[float]] = {}  # {tail: when each layer is expected}
        self._pairs: list[LivePair] = []

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts that wait in pairs."""
        return sum(pair.queued_tokens for pair in self._pairs)

    def planned(self, plan: Plan) -> None:
        """Remembers the tails of `plan`; a plan after a death replaces their times."""
        if self._config.zigzag:
            after_s = expected_s(plan, self._fleet.layers_bytes)
            for name in after_s:
                self._ready_s.pop(name, None)
            for tail in plan.tails():
                if tail.live:
                    now_s = self._loop.now
                    self._ready_s[tail.name] = [now_s + each for each in after_s[tail.name]]
            self.look()

    def look(self) -> None:
        """Pairs tails that load with overloaded prefills."""
        if not self._ready_s:
            return
        now_s = self._loop.now
        loading = {slot.name: slot for slot in self._fleet.of(Role.PREFILL, State.LOADING)}
        self._ready_s = {name: at for name, at in self._ready_s.items() if name in loading}
        tails_s = {
            name: max(0.0, at[-1] - now_s)
            for name, at in self._ready_s.items()
            if not loading[name].paired
        }
        if tails_s:
            for names in selected(tails_s, self._overloaded(), self._config.live_slo_s):
                self._begin(*map(self._fleet.named, names))

    def _overloaded(self) -> list[Overloaded]:
        serving, now_s = self._fleet.of(Role.PREFILL, State.SERVING), self._loop.now
        if not serving:
            return []
        waiting = self._serving.prompts.tokens + self.queued_tokens
        queued_s = waiting / len(serving) / self._rate
        arriving = self._monitor.tokens_per_s(now_s) / len(serving) / self._rate
        at_s = {slot.name: max(0.0, self._fleet.batch_end_s(slot) - now_s) for slot in serving}
        return [
            Overloaded(name=slot.name, backlog_s=queued_s + at_s[slot.name], arriving=arriving)
            for slot in serving
            if not slot.paired
        ]

    def _begin(self, source: Slot, target: Slot) -> None:
        ready_s, hop_s = self._ready_s[target.name], partial(self._hop_s, source, target)
        pair = LivePair(source, target, ready_s, hop_s, self._limits, self._serving)
        source.paired = target.paired = True
        self._pairs.append(pair)
        self._loop.spawn(self._run(pair), name=f"{source.name} and {target.name}")

    async def _run(self, pair: LivePair) -> None:
        await pair.run()
        self._pairs.remove(pair)

    def _hop_s(self, source: Slot, target: Slot, tokens: int) -> float:
        """Seconds of activations from the target to the source, if nothing else uses the links."""
        hardware, lanes = self._fleet.cluster.hardware, len(source.devices)
        lane = self._fleet.fabric.lane_bytes_per_s(target.devices[0], source.devices[0])
        near = source.node == target.node
        latency_s = hardware.nvlink_copy_latency_s if near else hardware.nic_latency_s
        return latency_s + tokens * self._fleet.model.activation_bytes_per_token / (lane * lanes)
