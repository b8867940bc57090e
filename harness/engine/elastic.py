"""Brings up elastic instances of engine=torch: files of weights, links, workers, the cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any

from harness.clock import Event, WallLoop
from harness.device.base import BaseInstance
from harness.device.location import Location, dram, hbm, ssd
from harness.device.topology import cluster_topology
from harness.elastic.arriving import Arriving
from harness.elastic.cluster import ElasticCluster
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Memory
from harness.elastic.host_copies import HostCopies
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import KvDirectory
from harness.elastic.pipeline import FlightPlan, Stage
from harness.engine.commands import Commands
from harness.engine.config import WARM_UP_TOKENS, TorchConfig
from harness.engine.fabric import TorchFabric
from harness.engine.host_memory import disk_file, memory_file
from harness.engine.layerwise import TorchLayerwise
from harness.engine.link_table import LinkTable
from harness.engine.paced_links import PacedLinks
from harness.engine.pipeline import TorchPipeline
from harness.engine.tokens import TokenBook
from harness.engine.worker_process import WorkerProcess, side_by_side
from harness.engine_api import Experiment, kv_blocks_by_model
from harness.errors import UsageError
from harness.placement import Placement, spec_of
from harness.request import Batch, Request

NewProcess = Callable[[int, Sequence[int], int], WorkerProcess]  # index, files, invitations


class TorchRunner(BaseInstance):
    """Batches whose weights and KV are all on one instance: a flight over one stage."""

    def __init__(
        self, instance: ElasticInstance, line: TorchPipeline, experiment: Experiment
    ) -> None:
        super().__init__(
            instance.name, instance.model, instance.kv, experiment.loop, experiment.recorder
        )
        self._stages = [(instance, range(instance.model.num_layers))]
        self._line = line
        self._book = line.book

    @property
    def tokens(self) -> dict[int, list[int]]:
        """Generated ids by request_id, of all instances of the run."""
        return self._book.generated

    def settle(self) -> float:
        return self._line.last_step_s

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
        halt: Event | None = None,
        arriving: Arriving | None = None,
    ) -> int:
        """The worker knows by itself which layers are `arriving`."""
        self._begin(batch, max_steps)
        steps, grown = 1, list[tuple[Request, int]]()
        try:
            if not batch.chunks:
                at_once = stop is not None and stop.is_set
                steps, grown, _ = self._reserve(batch.decodes, 1 if at_once else max_steps)
            plan = FlightPlan(batch, steps, self._stages, [{}])
            return await self._line.fly(plan, until, stop, halt or Event(self._loop))
        finally:
            self._running = False
            self._return_unused(grown)
            for request in batch.requests:
                if request.finished:
                    self.kv.release(request)
                    if not request.failed:
                        self._recorder.completed(request)


class TorchElastic:
    """Started by its constructor, ended by `stack`."""

    def __init__(
        self, stack: ExitStack, config: TorchConfig, num_threads: int, experiment: Experiment,
        new_process: NewProcess,
    ) -> None:  # fmt: skip
        loop = experiment.loop
        assert isinstance(loop, WallLoop), "make_loop() made it"
        self._stack, self._config, self._experiment = stack, config, experiment
        self._loop, self._num_threads = loop, num_threads
        self._book = TokenBook(experiment.seed)
        self._directory = KvDirectory(loop)
        self._files = self._open_files()
        places = self._places()
        links = LinkTable(cluster_topology(experiment.hardware), places, config.elastic.paced)
        self._links_file = PacedLinks.new_file(len(links))
        stack.callback(os.close, self._links_file)
        self._fabric = TorchFabric(loop, links, self._files, config.elastic.chunk_bytes)
        self._start(new_process)

    def _start(self, new_process: NewProcess) -> None:
        experiment, stack = self._experiment, self._stack
        layouts = [self._layout(placement) for placement in experiment.placements]
        workers: list[tuple[WorkerProcess, socket.socket]] = []
        for index, (placement, layout) in enumerate(
            zip(experiment.placements, layouts, strict=True)
        ):
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            with theirs:
                files = [*self._files.values(), self._links_file]
                worker = new_process(index, files, theirs.fileno())
            stack.callback(worker.close)
            worker.send(self._setup(index, placement, layout))
            workers.append((worker, ours))
        timeout_s = self._config.start_timeout_s
        self.ready = side_by_side(
            [partial(worker.handshake, timeout_s) for worker, _ in workers],
            [worker.kill for worker, _ in workers],
        )
        instances = []
        for (worker, invitations), placement, layout in zip(
            workers, experiment.placements, layouts, strict=True
        ):
            self._fabric.join(worker.name, Commands(worker, self._loop), invitations)
            instances.append(self._instance(worker.name, placement, layout))
        hosts = {
            node: HostCopies(
                node, experiment.hardware.host_memory_bytes, experiment.models, self._fabric,
                self._loop, experiment.recorder,
            )
            for node in range(experiment.hardware.num_nodes)
        }  # fmt: skip
        self.cluster = ElasticCluster(
            instances, hosts, self._fabric, self._directory, self._line, self._pieces, self._loop,
            experiment.recorder, experiment.hardware,
        )  # fmt: skip

    def resolved(self) -> dict[str, Any]:
        return {
            "devices": [answer["device"] for answer in self.ready],
            "num_threads": [answer["num_threads"] for answer in self.ready],
            "num_kv_blocks": kv_blocks_by_model(
                (one.model.name, one.kv.num_blocks) for one in self.cluster.instances
            ),
            "block_tokens": self._config.block_tokens,
            "links_paced": self._config.elastic.paced,
            "layer_s": self._config.elastic.layer_s,
            "token_s": self._config.elastic.token_s,
            "torch": self.ready[0]["torch"],
        }

    def _instance(self, name: str, placement: Placement, layout: DeviceLayout) -> ElasticInstance:
        instance = ElasticInstance(
            Memory(name, self._place(placement)), layout, self._directory, self._fabric,
            self._loop, self._experiment.recorder, resident=self._resident(placement),
        )  # fmt: skip
        line = self._line([(instance, range(layout.spec.num_layers))])
        instance.runner = TorchRunner(instance, line, self._experiment)
        return instance

    def _line(self, stages: Sequence[Stage]) -> TorchPipeline:
        return TorchPipeline(
            stages, self._fabric, self._loop, self._experiment.recorder, self._book
        )

    def _pieces(self) -> TorchLayerwise:
        return TorchLayerwise(self._line, self._fabric)

    def _setup(self, index: int, placement: Placement, layout: DeviceLayout) -> dict[str, Any]:
        config = self._config
        first = [p.model for p in self._experiment.placements].index(placement.model) == index
        return {
            "op": "setup", "memory": "elastic", "name": f"torch-{index}", "index": index,
            "device": config.device, "num_threads": self._num_threads, "spec": asdict(layout.spec),
            "memory_bytes": layout.memory_bytes, "block_tokens": layout.block_tokens,
            "page_layers": layout.page_layers, "resident": list(self._resident(placement)),
            "write": self._weight_files(layout.spec.name) if first else [],
            "links_file": self._links_file, "num_links": len(self._fabric.links),
            "layer_s": config.elastic.layer_s, "token_s": config.elastic.token_s,
            "warm_up_tokens": WARM_UP_TOKENS,
        }  # fmt: skip

    def _layout(self, placement: Placement) -> DeviceLayout:
        elastic, config = placement.elastic, self._config
        if placement.model is None or elastic is None:
            raise UsageError("a cluster with an elastic instance has no others")
        model = spec_of(placement, self._experiment.models)
        small = DeviceLayout(model, 2**62, config.block_tokens)
        weights = small.weight_bytes(range(model.num_layers))
        kv_bytes = config.cpu_kv_bytes
        if config.num_kv_blocks is not None:
            kv_bytes = (config.num_kv_blocks + 1) * small.page_bytes
        return DeviceLayout(
            model, weights + kv_bytes + 64, config.block_tokens, elastic.page_layers
        )

    def _resident(self, placement: Placement) -> range:
        assert placement.model is not None
        assert placement.elastic is not None
        resident = placement.elastic.resident
        num_layers = spec_of(placement, self._experiment.models).num_layers
        return range(num_layers) if resident is None else resident

    def _place(self, placement: Placement) -> Location:
        per_node = self._experiment.hardware.devices_per_node
        return hbm(*divmod(placement.devices.start, per_node))

    def _places(self) -> list[Location]:
        hardware = self._experiment.hardware
        places = [self._place(placement) for placement in self._experiment.placements]
        for node in range(hardware.num_nodes):
            places += [dram(node), ssd(node)]
        return places

    def _open_files(self) -> dict[str, int]:
        """For each node and model its copy in DRAM and on SSD; for each node its KV in DRAM."""
        files: dict[str, int] = {}
        stack, host_kv_bytes = self._stack, self._config.elastic.host_kv_bytes
        for node in range(self._experiment.hardware.num_nodes):
            files[f"dram{node}:kv"] = memory_file(stack, "kv", host_kv_bytes)
            for name in {spec.name for spec in self._experiment.models.values()}:
                files[f"dram{node}:{name}"] = memory_file(stack, name, 0)
                files[f"ssd{node}:{name}"] = disk_file(stack, self._experiment.run_dir)
        return files

    def _weight_files(self, model: str) -> list[int]:
        return [file for name, file in self._files.items() if name.endswith(f":{model}")]
