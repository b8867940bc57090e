"""Tensor parallelism, the harness's part: what may be shared out to ranks, and their workers."""

from __future__ import annotations

from collections.abc import Sequence

from harness.configuration.checks import require
from harness.engine.worker_process import WorkerProcess
from harness.engine.workers import Workers
from harness.engine_api import Experiment
from harness.model_family import family_of
from harness.model_spec import ModelSpec


def check_ranks(experiment: Experiment, gpus: int) -> None:
    """UsageError where a model of `experiment` has ranks that cannot be. `gpus`: that workers of a
    node see; 0: they run on the CPU."""
    moves = any(each.elastic or each.model is None for each in experiment.placements)
    own = [each.own for each in experiment.placements if each.own is not None]
    for spec in (*experiment.models.values(), *own):
        if spec.tp == 1:
            continue
        told = f"model.tp={spec.tp} with engine=torch"
        require(
            not moves,
            f"{told} is for instances that have one model for good, as of system=vllm with "
            "system.preemption=recompute: choose model.tp=1 or engine=sim for this system",
        )
        family = family_of(spec.family)
        require(
            family.mlp == "gated" and family.norm == "rms",
            f"{told} divides models of one gated MLP a layer, and model={spec.name} is of the "
            f"family {spec.family}: choose model.tp=1",
        )
        heads, columns = spec.num_kv_heads, spec.intermediate_size
        valid = [n for n in range(1, 17) if heads % n == columns % n == 0]
        require(
            heads % spec.tp == columns % spec.tp == 0,
            f"{told} must divide the {heads} KV heads and the {columns} columns of the MLP of "
            f"model={spec.name}; valid up to 16: {', '.join(map(str, valid))}",
        )
        require(
            gpus == 0 or spec.tp <= gpus,
            f"{told} needs a GPU for each rank, and workers see {gpus}: choose at most that, or "
            "engine.device=cpu",
        )


def start_ranks(
    workers: Workers, experiment: Experiment, specs: Sequence[ModelSpec]
) -> list[list[WorkerProcess]]:
    """The workers of each instance, rank by rank. Ranks meet in a file that they inherit."""
    meeting = [f"ranks of instance {index}" for index in range(len(specs))]
    several = [index for index, spec in enumerate(specs) if spec.tp > 1]
    of_nodes = [
        {meeting[index]: 0 for index in several if workers.nodes[index] == node}
        for node in range(experiment.hardware.num_nodes)
    ]
    workers.launcher.open(of_nodes)
    started: list[list[WorkerProcess]] = []
    for index, (spec, placement) in enumerate(zip(specs, experiment.placements, strict=True)):
        started.append([])
        for rank, device in enumerate(placement.devices[: spec.tp]):
            setup = {
                "memory": "dedicated", "spec": spec, "rank": rank, "meeting": meeting[index],
                "index": device,
            }  # fmt: skip
            started[-1].append(workers.start(index, setup, rank=rank))
            workers.stack.callback(started[-1][-1].close)
    return started
