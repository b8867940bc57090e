"""What a model switch takes on real workers, stage by stage: Aegaeon's T0 to T3.

    python -m tests.benchmarks.bench_switch [--rounds 5] [--link-bytes-per-s 1e8]

An instance that has decoded some requests of one model takes over those of another, in the four
ways of Fig. 7, 8 and 10: with everything in sequence and a new engine (T0), with components
reused (T1), with memory managed explicitly (T2), and prefetched with KV moving beside (T3).
Medians in milliseconds, from the last iteration's end to where the first request can go on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from omegaconf import OmegaConf

from harness.clock import Loop
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.engine.engine import TorchEngine
from harness.engine_api import Experiment
from harness.placement import pooled
from harness.pooled.instance import PooledInstance
from harness.records.record import Recorder
from harness.request import Batch, Request
from tests.running import ROOT, hardware_profile, model_spec

MODELS = {"before": "tiny-llama", "after": "tiny-llama-wide"}
BATCH, PROMPT_TOKENS = 4, 512
STAGES = ("swap out", "restart", "collect", "load", "adopt", "swap in", "total")
WAYS = ("T0", "T1", "T2", "T3")


class Switches:
    """`times[way, stage]`: seconds, of each round."""

    def __init__(self, loop: Loop, one: PooledInstance, requests: list[Request]) -> None:
        self.times: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._loop, self._one = loop, one
        self._leaving = [r for r in requests if r.model == "before"]
        self._coming = [r for r in requests if r.model == "after"]

    async def measure(self, rounds: int) -> None:
        await self._prefill("after", self._coming)
        await self._swap_out(self._coming)
        await self._prefill("before", self._leaving)
        for _ in range(rounds):
            for way in WAYS:
                await self._switch(way)
                await self._back()

    async def _switch(self, way: str) -> None:
        one, begin_s = self._one, self._loop.now
        if way == "T3":
            one.prefetch("after")  # beside the turn that now ends, hence not part of the switch
            while one.prefetched is None:
                await self._loop.sleep(0.001)
            begin_s = self._loop.now
        outs = [one.swap_out(request, lambda: None) for request in self._leaving]
        if way == "T3":
            arrivals = [one.swap_in(request, lambda: None) for request in self._coming]
            await self._stage(way, "adopt", one.adopt())
            start_s = self._loop.now
            assert arrivals[0] is not None
            await self._loop.wait(arrivals[0])
            self.times[way, "swap in"].append(self._loop.now - start_s)
        else:
            start_s = self._loop.now
            for out in outs:
                await self._loop.wait(out)
            self.times[way, "swap out"].append(self._loop.now - start_s)
            if way == "T0":
                await self._stage(way, "restart", one.restart())
            if way == "T1":
                await self._stage(way, "collect", one.collect_garbage())
            await self._stage(way, "load", one.load("after", staged=way == "T2"))
            await self._stage(way, "swap in", self._swap_in(self._coming))
        self.times[way, "total"].append(self._loop.now - begin_s)
        while not all(one.holds(request) for request in self._coming):
            await self._loop.sleep(0.001)

    async def _back(self) -> None:
        await self._swap_out(self._coming)
        await self._one.load("before")
        await self._swap_in(self._leaving)

    async def _stage(self, way: str, stage: str, operation: Awaitable[object]) -> None:
        start_s = self._loop.now
        await operation
        self.times[way, stage].append(self._loop.now - start_s)

    async def _prefill(self, model: str, requests: list[Request]) -> None:
        await self._one.load(model)
        for request in requests:
            assert self._one.kv(model).grow(request, PROMPT_TOKENS)
            await self._one.execute(Batch(chunks=[(request, PROMPT_TOKENS)]))

    async def _swap_out(self, requests: list[Request]) -> None:
        for out in [self._one.swap_out(request, lambda: None) for request in requests]:
            await self._loop.wait(out)

    async def _swap_in(self, requests: list[Request]) -> None:
        for arrived in [self._one.swap_in(request, lambda: None) for request in requests]:
            assert arrived is not None
            await self._loop.wait(arrived)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link-bytes-per-s", type=float, default=None)
    arguments = parser.parse_args()
    node = OmegaConf.load(ROOT / "conf/engine/torch.yaml")
    del node["_target_"]
    node.pool.link_bytes_per_s = arguments.link_bytes_per_s
    engine = TorchEngine(typed(plain(node), TorchEngine.Config, "engine"))
    models = {name: model_spec(spec) for name, spec in MODELS.items()}
    hardware = replace(hardware_profile("local"), num_devices=1)
    requests = [
        Request(i, 0.0, model, PROMPT_TOKENS, 8) for i, model in enumerate([*models] * BATCH)
    ]
    with ExitStack() as stack:
        experiment = Experiment(
            loop=engine.make_loop(),
            recorder=Recorder(requests),
            models=models,
            hardware=hardware,
            placements=pooled(models, hardware),
            run_dir=Path(stack.enter_context(tempfile.TemporaryDirectory())),
            seed=0,
            scheduler={},
            announce=lambda line: None,
        )
        cluster = stack.enter_context(engine.start(experiment))
        switches = Switches(experiment.loop, cluster.pool[0], requests)
        experiment.loop.run(switches.measure(arguments.rounds))
        print(f"{engine.resolved()['devices'][0]}: {MODELS['before']} to {MODELS['after']}, ms")
    print("".join(f"{title:>10}" for title in ("", *STAGES)))
    for way in WAYS:
        cells = [switches.times[way, stage] for stage in STAGES]
        print(f"{way:>10}" + "".join(f"{median(c) * 1e3:10.1f}" if c else " " * 10 for c in cells))


if __name__ == "__main__":
    main()
