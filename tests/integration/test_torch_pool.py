"""Models that take turns on real workers: whatever moves where, the tokens stay the same.
`test_torch_pool_ends.py` has how their workers start and end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from harness.cluster import Cluster
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.profile import HardwareProfile
from harness.engine.engine import TorchEngine
from harness.engine_api import Experiment
from harness.model_spec import ModelSpec
from harness.placement import dedicated, pooled
from harness.pooled.instance import PooledInstance
from harness.records.record import Recorder
from harness.request import Batch, Request
from tests.exactness import answers
from tests.forked_workers import workers_alive
from tests.running import hardware_profile, model_spec

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

ROOT = Path(__file__).resolve().parents[2]
MODELS = {  # three KV shapes, two models of one of them
    "narrow": model_spec("tiny-llama"),
    "same": replace(model_spec("tiny-llama"), seed=1),
    "wide": model_spec("tiny-llama-wide"),
    "deep": model_spec("tiny-llama-deep"),
}


@contextmanager
def started(
    run_dir: Path, models: dict[str, ModelSpec], place: Any, requests: list[Request],
    num_pooled: int = 2, per_node: int | None = None, **changes: Any,
) -> Iterator[tuple[Experiment, TorchEngine, Cluster]]:  # fmt: skip
    """`num_pooled` instances, or one per model, on which every model has its say. `per_node`: of
    the instances; None: all."""
    values = OmegaConf.load(ROOT / "conf/engine/torch.yaml")
    del values["_target_"]
    values = OmegaConf.merge(values, {"num_threads": 1}, changes)
    engine = TorchEngine(typed(plain(values), TorchEngine.Config, "engine"))
    num_devices = len(models) if place is dedicated else num_pooled
    hardware = replace(
        hardware_profile("local"), num_devices=num_devices,
        devices_per_node=per_node or num_devices,
    )  # fmt: skip
    run_dir.mkdir(exist_ok=True)
    experiment = Experiment(
        loop=engine.make_loop(),
        recorder=Recorder(requests),
        models=models,
        hardware=hardware,
        run_dir=run_dir,
        seed=0,
        placements=place(models, hardware),
        scheduler={},
        announce=lambda line: None,
    )
    with engine.start(experiment) as cluster:
        yield experiment, engine, cluster


def requests_for(models: dict[str, ModelSpec], per_model: int) -> list[Request]:
    """The same ones each time."""
    rng = np.random.default_rng(7)
    return [
        Request(i, 0.0, name, int(rng.integers(5, 200)), int(rng.integers(2, 40)))
        for i, name in enumerate(list(models) * per_model)
    ]


def dedicated_tokens(run_dir: Path, models: dict[str, ModelSpec]) -> dict[int, list[int]]:
    """Each model on an instance of its own, a request at a time."""
    requests = requests_for(models, 3)
    changes = {"num_kv_blocks": 64}
    with started(run_dir, models, dedicated, requests, **changes) as (experiment, _, cluster):
        instances = dict(zip(models, cluster.instances, strict=True))

        async def story() -> None:
            for request in requests:
                one = instances[request.model]
                assert one.kv.grow(request, request.prompt_tokens)
                await one.execute(Batch(chunks=[(request, request.prompt_tokens)]))
                while not request.finished:
                    assert one.kv.grow(request, request.computed_tokens + 1)
                    await one.execute(Batch(decodes=[request]))

        experiment.loop.run(story())
        return answers(*requests)


class Turns:
    """A policy that does everything that a pool can do, in an order drawn from a seed."""

    def __init__(self, experiment: Experiment, cluster: Cluster, requests: list[Request]) -> None:
        self.loop = experiment.loop
        self.pool, self.models = list(cluster.pool), list(experiment.models)
        self.waiting = list(requests)  # on no instance; decoding ones in the host cache
        self.rng = np.random.default_rng(3)
        self.tokens: dict[int, list[int]] = {}

    async def serve(self) -> None:
        """On both instances at once, until all are finished."""
        tasks = [
            self.loop.spawn(self._serve(instance), name=instance.name) for instance in self.pool
        ]
        for task in tasks:
            await self.loop.wait(task.finished)

    async def _serve(self, one: PooledInstance) -> None:
        turn = 0
        while self.waiting:
            turn += 1
            model = self.waiting[0].model
            mine = [r for r in self.waiting if r.model == model][:3]
            self.waiting = [r for r in self.waiting if r not in mine]
            if turn == 4:
                await one.restart()
            await self._bring(one, model)
            if self.waiting and one.can_prefetch(self.waiting[0].model):
                one.prefetch(self.waiting[0].model)
            arrivals = [(r, one.swap_in(r, lambda: None)) for r in mine if r.decoding]
            for request in (r for r in mine if not r.decoding):
                assert one.kv(model).grow(request, request.prompt_tokens)
                await one.execute(Batch(chunks=[(request, request.prompt_tokens)]))
            for _, arrived in arrivals:
                assert arrived is not None
                await self.loop.wait(arrived)
            await self._decode(one, [r for r in mine if not r.finished])
            leaving = [r for r in mine if not r.finished]
            outs = [one.swap_out(request, lambda: None) for request in leaving]
            self.waiting += leaving
            for out in outs if turn == 3 else []:  # a restart comes next
                await self.loop.wait(out)

    async def _bring(self, one: PooledInstance, model: str) -> None:
        if one.model == model:
            return
        one.begin_switch()
        if one.prefetching == model:
            await one.adopt()
            return
        staged = bool(self.rng.integers(2))
        if not staged:
            await one.collect_garbage()
        await one.load(model, staged=staged)

    async def _decode(self, one: PooledInstance, batch: list[Request]) -> None:
        """For some iterations; preempted where it stands."""
        for _ in range(int(self.rng.integers(1, 9))):
            batch = [r for r in batch if not r.finished]
            if not batch:
                return
            for request in batch:
                assert one.kv(request.model).grow(request, request.computed_tokens + 1)
            await one.execute(Batch(decodes=batch), until=self.loop.now + 0.002)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    """One of them from a checkpoint, with weights that no seed of ours would draw there."""
    from tests.checkpoints import save_checkpoint

    directory = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(replace(MODELS["wide"], seed=5), directory)
    return MODELS | {"wide": replace(MODELS["wide"], path=str(directory))}


@pytest.fixture(scope="module")
def expected(
    models: dict[str, ModelSpec], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[int]]:
    return dedicated_tokens(tmp_path_factory.mktemp("dedicated"), models)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        # Some models come from a file, and no prefetched one has room beside the largest.
        {"pool": {"model_cache_bytes": 20_000_000, "min_kv_share": 0.9}},
        {"pool": {"link_bytes_per_s": 4e8, "slab_bytes": 200_000, "host_slab_bytes": 500_000}},
    ],
    ids=["plenty", "tight", "slow"],
)
def test_every_request_has_the_tokens_of_a_dedicated_instance(
    models: dict[str, ModelSpec], expected: dict[int, list[int]], tmp_path: Path,
    changes: dict[str, Any],
) -> None:  # fmt: skip
    requests = requests_for(models, 3)
    with started(tmp_path, models, pooled, requests, **changes) as (experiment, engine, cluster):
        turns = Turns(experiment, cluster, requests)
        experiment.loop.run(turns.serve())
        kinds = [event["kind"] for event in experiment.recorder.events]
        device: Any = cluster.pool[0]._device
        tokens = dict(device._run.book.generated)
        assert [one.kv(model).used_blocks for one in turns.pool for model in models] == [0] * 8
        assert cluster.pool[0].host.slabs.allocated_bytes() == 0
        has_room = engine.resolved()["pool"]["prefetching"]
        assert_estimates_are_of_this_machine(experiment, engine, cluster)
    assert tokens == expected
    for kind in ("switch", "restart", "load", "collect", "swap_out", "swap_in"):
        assert kinds.count(kind) >= 2, kind
    assert kinds.count("adopt") >= 1 or not has_room
    assert_nothing_left(tmp_path)


def assert_estimates_are_of_this_machine(
    experiment: Experiment, engine: TorchEngine, cluster: Cluster
) -> None:
    profiled = HardwareProfile(experiment.hardware)
    time_scale = engine.resolved()["time_scale"]
    assert set(time_scale) == {spec.name for spec in experiment.models.values()}
    for spec in experiment.models.values():
        ratio = cluster.profile.decode_step_s(spec, 4, 999) / profiled.decode_step_s(spec, 4, 999)
        assert ratio == pytest.approx(time_scale[spec.name]["decode"])
        assert ratio > 0


def assert_nothing_left(run_dir: Path) -> None:
    """No process, no memory file and no file of weights."""
    assert workers_alive() == []
    files = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    assert not [file for file in files if "memfd" in file]
    assert {path.name for path in run_dir.iterdir()} == {"logs", "tokens.parquet"}
