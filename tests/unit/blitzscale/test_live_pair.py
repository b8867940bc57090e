"""A live pair on simulated instances: Fig. 15 as it runs, and the invariant of §5.2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from harness.clock import Event, Loop
from harness.configuration.config import build
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.cost.profile import HardwareProfile
from harness.running import testbed
from systems.blitzscale.config import InFlight
from systems.blitzscale.instances import Fleet, Role, Slot, State
from systems.blitzscale.live import LivePair
from systems.blitzscale.schedulers import Limits
from systems.blitzscale.serving import Prompts, Serving
from systems.blitzscale.timeline import PairTimes, replay
from tests.running import composed, hardware_profile, model_spec

LAYERS, TOKENS, LAYER_S = 7, 100, 1.0


def hardware(nic_bytes_per_s: float) -> Hardware:
    """Where a layer takes exactly 10 ms a token, and activations what the network takes."""
    base = hardware_profile("local_cluster_x4")
    terms = replace(
        base.calibration.measured["tiny-llama_tp1"], launch_s=0.0, weights_s=0.0, prefill_s=0.0,
        chunk_s=0.0, token_s=LAYERS * LAYER_S / TOKENS,
    )  # fmt: skip
    calibration = replace(base.calibration, turnaround_s=0.0, measured={"tiny-llama_tp1": terms})
    return replace(
        base,
        calibration=calibration,
        nic_bytes_per_s=nic_bytes_per_s,
        nic_latency_s=0.0,
        pcie_bytes_per_s=1e15,
        pcie_peak_bytes_per_s=1e15,
        pcie_latency_s=0.0,
    )


@cache
def engine() -> Any:
    node = composed("engine=sim").engine
    node.num_kv_blocks = 400
    return plain(node)


@dataclass
class Story:
    """A pair, `prompts` that wait from the start, and layers that come at `ready_s`. `hop_s`: what
    is known of the activations' way."""

    prompts: Sequence[int]
    ready_s: Sequence[float]
    scheduler: str = "ilp_free"
    nic_bytes_per_s: float = 1e15
    hop_s: Callable[[int], float] = lambda tokens: 0.0
    live: bool = True
    in_flight: InFlight | None = None
    under_way: list[int] = field(default_factory=list)  # batches that have begun, at each look

    def ends_s(self) -> list[float]:
        spec = replace(model_spec("tiny-llama"), num_layers=LAYERS)
        on = hardware(self.nic_bytes_per_s)
        with testbed.start(
            spec, on, build(engine(), "engine"), 2, page_layers=1, resident={1: range(0)}
        ) as bed:
            requests = [bed.request(tokens, 1) for tokens in self.prompts]
            loop, cluster = bed.loop, bed.cluster
            source, target = slots = [
                Slot(one, one.model.name, (i,), i, loop) for i, one in enumerate(bed.instances)
            ]
            prompts = Prompts(1)
            serving = Serving(Fleet(slots, cluster, HardwareProfile(on), loop), prompts)
            cluster.hosts[1].keep(spec.name)
            copy = cluster.hosts[1].source(spec.name)

            async def story() -> None:
                target.role, target.state = Role.PREFILL, State.LOADING
                prompts.put(requests)
                limits = Limits(self.scheduler, 0.0, loop, self.in_flight)
                pair = LivePair(source, target, list(self.ready_s), self.hop_s, limits, serving)
                if self.live:
                    source.state = State.SERVING
                    loop.spawn(pair.run(), name="pair")
                    loop.spawn(self._look(loop, pair), name="look")
                serving.begin(source)
                for layer, at_s in enumerate(self.ready_s):
                    await loop.sleep_until(at_s)
                    assert await target.instance.load(  # over PCIe, which is fast
                        range(layer, layer + 1), copy
                    )
                    target.notify()
                serving.begin(target)
                while not all(request.finished for request in requests):
                    await loop.sleep(1.0)
                assert not any(instance.kv.held for instance in bed.instances)
                await loop.wait(Event(loop), until=loop.now + 1)

            bed.run(story())
            records = bed.recorder.records
            return [float(records[r.request_id].token_times_s()[0]) for r in requests]

    async def _look(self, loop: Loop, pair: LivePair) -> None:
        while True:
            await loop.sleep(0.25)
            begun = sum(batch.executed > 0 for batch in pair._queue)
            self.under_way.append(begun + (pair._taken is not None))


FIG_15 = [6.0 * layer for layer in range(LAYERS)]  # from when layer 1 is there


@pytest.mark.parametrize(
    ("scheduler", "ends_s"),
    [
        ("best_effort", [7, 13, 19, 25, 31, 37]),
        ("ilp_free", [7, 12, 17, 21, 24, 27]),
        ("ilp", [7, 12, 17, 21, 24, 27]),
    ],
)
def test_fig_15_as_it_runs(scheduler: str, ends_s: list[float]) -> None:
    found = Story([TOKENS] * 6, FIG_15, scheduler).ends_s()
    assert found == pytest.approx(ends_s, abs=1e-6)


@pytest.mark.parametrize("hop_s", [0.1, 0.5, 1.0])
def test_activations_are_sent_while_the_source_is_busy(hop_s: float) -> None:
    """Only the first batch waits for them on the source: as the timeline has it, hops included."""
    nic = 4 * 256 * TOKENS / hop_s
    found = Story([TOKENS] * 6, FIG_15, nic_bytes_per_s=nic, hop_s=lambda n: n * hop_s / TOKENS)
    layer_s, hops_s = (LAYER_S,) * 6, (hop_s,) * 6
    times = PairTimes(num_layers=LAYERS, layer_s=layer_s, ready_s=tuple(FIG_15), hop_s=hops_s)
    assert found.ends_s() == pytest.approx(replay(times, [None] * 6).ends_s, abs=1e-6)


@pytest.mark.parametrize(("bound", "most"), [(None, 7), (InFlight(most=2, least=2, step_s=1.0), 2)])
def test_the_artifacts_pair_has_no_more_batches_under_way_than_its_bound(
    bound: InFlight | None, most: int
) -> None:
    story = Story([TOKENS] * 12, FIG_15, in_flight=bound)
    story.ends_s()
    assert max(story.under_way) == most


def test_with_overlap_the_new_instance_ends_nothing_before_it_is_loaded() -> None:
    """Fig. 9 (c)."""
    found = Story([TOKENS] * 12, FIG_15, "overlap").ends_s()
    alone = Story([TOKENS] * 12, FIG_15, live=False).ends_s()
    early = [end_s for end_s in found if end_s < FIG_15[-1] + LAYER_S]
    assert early == [end_s for end_s in alone if end_s < FIG_15[-1] + LAYER_S]


def test_throughput_is_never_below_stop_the_world() -> None:
    """§5.2, with unequal batches, loads at any pace and activations that take time: at every
    moment until all is loaded as many batches have ended as on the source alone, or more."""
    rng = np.random.default_rng(0)
    gained = 0
    for _ in range(6):
        prompts = [int(each) for each in rng.integers(20, 300, size=rng.integers(2, 9))]
        ready_s = [float(at) for at in np.cumsum(rng.uniform(0.5, 8, size=LAYERS))]
        token_s = float(rng.choice([0.0001, 0.001, 0.01]))  # a layer's takes 0.01
        nic = 4 * 256 / token_s
        alone = Story(prompts, ready_s, nic_bytes_per_s=nic, live=False).ends_s()
        live = Story(
            prompts, ready_s, nic_bytes_per_s=nic, hop_s=lambda n, each=token_s: n * each
        ).ends_s()
        until_s = [end_s for end_s in sorted(alone) if end_s <= ready_s[-1]]
        for ours_s, theirs_s in zip(sorted(live), until_s, strict=False):
            assert ours_s <= theirs_s + 0.01, (prompts, ready_s, token_s)
        gained += sum(live) < sum(alone) - 0.5
    assert gained >= 3, "else nothing was shared"
