"""engine=torch: a worker process for each rank of an instance, on the CPUs or GPUs of this host or
of several.

Instances that serve one model for good are brought up here, those that models take turns on in
`harness.engine.pool`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.clock import WallLoop
from harness.cluster import Cluster
from harness.configuration.checkpoint import require_family
from harness.cost.profile import HardwareProfile
from harness.device.caching_pool import CachingPool
from harness.engine import attention_choice
from harness.engine.agents_launcher import AgentsLauncher
from harness.engine.block_tables import BlockTables
from harness.engine.commands import Commands
from harness.engine.config import TorchConfig
from harness.engine.device_share import num_gpus
from harness.engine.elastic import TorchElastic
from harness.engine.hf_config import check_config
from harness.engine.instance import LiveRun, TorchInstance
from harness.engine.launcher import Launcher, LocalLauncher
from harness.engine.pool import TorchPool
from harness.engine.rank_workers import check_ranks, start_ranks
from harness.engine.ray_launcher import OF_A_CLUSTER, ray_launcher
from harness.engine.transport import Header
from harness.engine.workers import Workers, num_workers
from harness.engine_api import Experiment, kv_blocks_by_model
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import resident_models
from harness.records.gpu_monitor import require_gpu


class TorchEngine:
    name = "torch"
    has_devices = True
    devices_known = True
    Config = TorchConfig

    def __init__(self, config: TorchConfig) -> None:
        self._config = config
        self._resolved: dict[str, Any] = {}
        self._workers: Workers | None = None
        self._nodes: list[dict[str, Any]] = []  # that have an agent each

    def make_loop(self) -> WallLoop:
        return WallLoop()

    def resolved(self) -> dict[str, Any]:
        if not self._nodes or self._workers is None:
            return self._resolved
        return self._resolved | {"nodes": self._nodes, "clocks": self._workers.clocks()}

    @contextmanager
    def start(self, experiment: Experiment) -> Iterator[Cluster]:
        far = self._config.cluster == "ray" and self._config.device == "cuda"  # of nodes, with Ray
        if not far:
            require_gpu(experiment.hardware, "torch", on_cpu=self._config.device == "cpu")
        gpus = experiment.hardware.devices_per_node if far else num_gpus(self._config.device)
        own = [each.own for each in experiment.placements if each.own is not None]
        models = [*experiment.models.values(), *own]
        check_models(models)
        check_ranks(experiment, gpus)
        attention, device = self._config.attention, self._config.device
        attention_choice.check_models(attention, device, models, far=far)
        if any(placement.gained_bytes for placement in experiment.placements):
            raise UsageError(
                "engine=torch cannot stream layers from host memory in each iteration: choose "
                "engine=sim"
            )
        placements = experiment.placements
        if self._config.transport == "nixl" and not any(each.elastic for each in placements):
            raise UsageError(
                "engine.transport=nixl is for systems whose weights and KV move between instances, "
                "as +system=blitzscale; valid here: sockets"
            )
        with ExitStack() as stack:
            started = num_workers(experiment)
            experiment.announce(f"starting {started} torch workers, device {device}")
            launcher = self._launcher(stack, experiment, gpus)
            if isinstance(launcher, AgentsLauncher):
                self._nodes = launcher.about
            self._workers = workers = Workers(stack, launcher, self._config, experiment)
            if any(placement.elastic for placement in placements):
                elastic = TorchElastic(workers, self._config, experiment)
                self._resolved = elastic.resolved()
                cluster = experiment.cluster(elastic=elastic.cluster, victims=elastic.victims)
            elif all(placement.model is None for placement in placements):
                cluster, self._resolved = TorchPool(workers, self._config, experiment).ready()
            else:
                instances = self._dedicated(workers, experiment)
                victims = [
                    workers.victim(index, one.name, one.pids, one.may_fail)
                    for index, one in enumerate(instances)
                ]
                cluster = experiment.cluster(instances=instances, victims=victims)
            if self._config.cluster == "ray":
                assert isinstance(launcher, AgentsLauncher)
                cluster.hosts = launcher.hosts
                for victim in cluster.victims:
                    victim.expect()  # its node may die, which is the system's to deal with
            yield cluster

    def _launcher(self, stack: ExitStack, experiment: Experiment, gpus: int) -> Launcher:
        hardware = experiment.hardware
        if self._config.cluster == "ray":
            return ray_launcher(stack, hardware.num_nodes, hardware.nodes, gpus)
        if hardware.nodes is not None:
            raise UsageError(OF_A_CLUSTER)
        return LocalLauncher(stack, experiment.run_dir)

    def _dedicated(self, workers: Workers, experiment: Experiment) -> list[TorchInstance]:
        """An instance for each placement, which has its model for good."""
        specs = [experiment.models[name] for name in resident_models(experiment.placements)]
        loop, book = experiment.loop, workers.book
        assert isinstance(loop, WallLoop), "make_loop() made it"
        started = start_ranks(workers, experiment, specs)
        answers = iter(workers.answers([worker for ranks in started for worker in ranks]))
        served = [[next(answers) for _ in ranks] for ranks in started]
        num_blocks = [min(answer["num_kv_blocks"] for answer in ranks) for ranks in served]
        self._resolved = workers.resolved([answer for ranks in served for answer in ranks]) | {
            "instances": [
                about(spec, blocks, ranks[0])
                for spec, blocks, ranks in zip(specs, num_blocks, served, strict=True)
            ],
            "num_kv_blocks": kv_blocks_by_model(
                (spec.name, blocks) for spec, blocks in zip(specs, num_blocks, strict=True)
            ),
        }
        run = LiveRun(loop, experiment.recorder, book, HardwareProfile(experiment.hardware))
        instances = []
        for spec, ranks, blocks in zip(specs, started, num_blocks, strict=True):
            kv = CachingPool(blocks, self._config.block_tokens)
            commands = Commands(ranks[0], loop, [Commands(rank, loop) for rank in ranks[1:]])
            instances.append(TorchInstance(spec, kv, BlockTables(kv), commands, run))
        return instances


def about(spec: ModelSpec, num_blocks: int, rank: Header) -> dict[str, Any]:
    """What a manifest says of an instance that has `num_blocks`, by the answer of one of its ranks,
    which may have room for more."""
    return {
        "model": spec.name, "dtype": spec.dtype, "tp": spec.tp, "num_kv_blocks": num_blocks,
        **{key: rank[key] for key in ("device", "num_threads", "weights_bytes")},
        "kv_bytes": rank["kv_bytes"] // rank["num_kv_blocks"] * num_blocks,
    }  # fmt: skip


def check_models(models: Iterable[ModelSpec]) -> None:
    """UsageError for a model that this engine cannot run."""
    for spec in models:
        require_family(spec, "engine=torch runs")
        if spec.path is not None:
            check_config(spec, Path(spec.path))
