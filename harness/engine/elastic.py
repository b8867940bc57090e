"""Brings up elastic instances of engine=torch: files of weights, links, workers, the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import inf
from typing import Any

from harness.clock import Event, WallLoop
from harness.device.base import Arriving, BaseInstance, Grown
from harness.device.location import Location, dram, hbm, ssd
from harness.device.topology import Topology
from harness.elastic.cluster import ElasticCluster
from harness.elastic.device_layout import DeviceLayout, memory_for_blocks, memory_for_kv
from harness.elastic.fabric import Memory
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import KvDirectory
from harness.elastic.pipeline import Stage, StagedBatch
from harness.elastic.shared import Shared
from harness.engine.commands import Commands
from harness.engine.config import TorchConfig
from harness.engine.fabric import LinkTable, TorchFabric, check_leaves
from harness.engine.pipeline import TorchLayerwise, TorchPipeline
from harness.engine.worker_process import WorkerProcess
from harness.engine.workers import Workers
from harness.engine_api import Experiment, kv_blocks_by_model
from harness.errors import UsageError
from harness.placement import Placement, spec_of
from harness.request import Batch


class TorchRunner(BaseInstance):
    """Batches whose weights and KV are all on one instance: a pipeline of one stage."""

    def __init__(self, instance: ElasticInstance, pipeline: TorchPipeline, shared: Shared) -> None:
        super().__init__(instance.name, instance.model, instance.kv, shared.loop, shared.recorder)
        self._instance, self._pipeline = instance, pipeline

    def settle(self) -> float:
        return self._pipeline.last_step_s

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
        interrupt: Event | None = None,
        arriving: Arriving | None = None,
    ) -> int:
        """The worker knows by itself which layers are `arriving`."""
        self._begin(batch, max_steps)
        grown: Grown = []
        try:
            steps, grown = self._steps(batch, max_steps, stop)
            stages = [(self._instance, range(self.model.num_layers))]
            staged = StagedBatch(batch, steps, stages, [{}], [self._instance])
            return await self._pipeline.run(staged, until, stop, interrupt or Event(self._loop))
        finally:
            self._running = False
            self._end(batch.requests, grown)


class TorchElastic:
    """Elastic instances on workers that run torch; started by its constructor, ended with
    `workers`."""

    def __init__(self, workers: Workers, config: TorchConfig, experiment: Experiment) -> None:
        loop = experiment.loop
        assert isinstance(loop, WallLoop), "make_loop() made it"
        self._workers, self._config, self._experiment = workers, config, experiment
        self._loop, self._book = loop, workers.book
        one_host, paced = workers.launcher.one_host, config.elastic.paced
        check_leaves(experiment.hardware, paced=paced, one_host=one_host)
        links = LinkTable(Topology(experiment.hardware), self._places(), paced, one_host)
        self._files = self._node_files()
        workers.launcher.open(self._files)
        self._tables = links.open(workers.launcher, experiment.hardware.num_nodes)
        stall = workers.launcher.stall_links
        self._fabric = TorchFabric(loop, links, stall, config.elastic.chunk_bytes)
        self._shared = Shared(loop, experiment.recorder, self._fabric, KvDirectory(loop))
        self._start()

    def _start(self) -> None:
        experiment, stack = self._experiment, self._workers.stack
        started: list[tuple[WorkerProcess, ElasticInstance]] = []
        for index, placement in enumerate(experiment.placements):
            instance = self._instance(f"torch-{index}", placement)
            setup = self._setup(index, placement, instance)
            worker = self._workers.start(index, setup, has_peers=True)
            stack.callback(worker.close)
            started.append((worker, instance))
        self._answers = self._workers.answers([worker for worker, _ in started])
        for (one, _), (other, _) in combinations(started, 2):
            self._workers.launcher.connect(one.name, other.name)
        for worker, instance in started:
            self._fabric.join(instance.memory, Commands(worker, self._loop))
            whole = self.pipeline([(instance, range(instance.model.num_layers))])
            instance.runner = TorchRunner(instance, whole, self._shared)
        self.victims = [
            self._workers.victim(index, worker.name, worker.pids)
            for index, (worker, _) in enumerate(started)
        ]
        instances = [instance for _, instance in started]
        self.cluster = ElasticCluster(
            instances, self, self._shared, experiment.models, experiment.hardware
        )

    def resolved(self) -> dict[str, Any]:
        return self._workers.resolved(self._answers) | {
            "num_threads": [answer["num_threads"] for answer in self._answers],
            "num_kv_blocks": kv_blocks_by_model(
                (one.model.name, one.kv.num_blocks) for one in self.cluster.instances
            ),
            "links_paced": self._config.elastic.paced,
            "layer_s": self._config.elastic.layer_s,
            "token_s": self._config.elastic.token_s,
        }

    def pipeline(self, stages: Sequence[Stage]) -> TorchPipeline:
        recorder = self._experiment.recorder
        return TorchPipeline(stages, self._fabric, self._loop, recorder, self._book)

    def layerwise(self) -> TorchLayerwise:
        return TorchLayerwise(self.pipeline, self._fabric)

    def _setup(self, index: int, placement: Placement, instance: ElasticInstance) -> dict[str, Any]:
        first = [p.model for p in self._experiment.placements].index(placement.model) == index
        layout, end = instance.layout, f":{instance.model.name}"
        copies = [name for files in self._files for name in files if name.endswith(end)]
        return {
            "memory": "elastic", "name": instance.name, "spec": layout.spec,
            "layout": (layout.memory_bytes, layout.block_tokens, layout.page_layers),
            "resident": sorted(instance.resident),
            "write": copies if first else [],
            "tables": self._tables,
        }  # fmt: skip

    def _instance(self, name: str, placement: Placement) -> ElasticInstance:
        elastic, config = placement.elastic, self._config
        if elastic is None or not (placement.model or placement.own):
            raise UsageError("a cluster with an elastic instance has no others")
        model = spec_of(placement, self._experiment.models)
        memory_bytes = memory_for_kv(model, config.cpu_kv_bytes)
        share_bytes = self._workers.share_bytes()
        if share_bytes is not None:
            memory_bytes = int(share_bytes * config.memory_fraction)
        if config.num_kv_blocks is not None:
            memory_bytes = memory_for_blocks(model, config.block_tokens, config.num_kv_blocks)
        layout = DeviceLayout(model, memory_bytes, config.block_tokens, elastic.page_layers)
        memory = Memory(name, self._place(placement))
        return ElasticInstance(memory, layout, self._shared, elastic.resident)

    def _place(self, placement: Placement) -> Location:
        per_node = self._experiment.hardware.devices_per_node
        return hbm(*divmod(placement.devices.start, per_node))

    def _places(self) -> list[Location]:
        hardware = self._experiment.hardware
        places = [self._place(placement) for placement in self._experiment.placements]
        for node in range(hardware.num_nodes):
            places += [dram(node), ssd(node)]
        return places

    def _node_files(self) -> list[dict[str, int | None]]:
        """Each node's copy of each model in DRAM and on SSD, and its KV in DRAM."""
        models = {spec.name for spec in self._experiment.models.values()}
        return [
            {dram(node).file("kv"): self._config.elastic.host_kv_bytes}
            | {dram(node).file(name): 0 for name in models}
            | {ssd(node).file(name): None for name in models}
            for node in range(self._experiment.hardware.num_nodes)
        ]
