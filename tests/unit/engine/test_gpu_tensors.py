"""A step on a GPU: torch's meta device stands for it, which refuses tensors of two devices in one
product as a GPU does; and the choices that depend on where a run computes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.calibrate import zoo
from harness.engine import engine, ranks, ray_launcher
from harness.engine.attention_choice import kernels_of
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.kv_cache import new_cache
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.runner import Runner
from harness.engine.work import BatchWork, Chunk
from harness.errors import UsageError
from harness.records import gpu_monitor
from harness.reproduce import asked
from tests.integration.test_torch_engine import started
from tests.unit.engine.serving import SPEC, VARIANTS
from tests.unit.engine.stand_in_cuda import Calls

META = torch.device("meta")
FIRST, SECOND = [FIRST_BLOCK, FIRST_BLOCK + 1], [FIRST_BLOCK + 2, FIRST_BLOCK + 3]


WORKS = {
    "prompt": BatchWork([Chunk(0, 5, True)], [], [1] * 5, [FIRST]),
    "chunk beside a decode": BatchWork([Chunk(3, 5, True)], [9], [1] * 6, [FIRST, SECOND]),
    "decodes": BatchWork([], [9, 3], [1, 1], [FIRST, SECOND]),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "opt"])
def test_a_steps_tensors_are_all_on_the_gpu(work: BatchWork, family: str) -> None:
    spec = replace(SPEC, **VARIANTS[family])
    kernels = kernels_of("torch", spec, META)
    layers = LoadedLayers(spec, META, kernels.linear)
    decoder = TransformerDecoder(spec, layers.ends, kernels)
    runner = Runner(spec, decoder, layers.on_device, new_cache(spec, 8, 8, META), META)
    with torch.inference_mode():
        attend = runner.attention(work)
        for index in range(1 if work.chunks else 2):
            if index:
                attend.advance()
            step, sampled = runner.step(work, attend)
            ids = torch.empty(len(work.ids), dtype=torch.int64, device=META)
            hidden = runner.forward(runner.embed(ids, step), step, 0, spec.num_layers)
            picked = runner.picked(hidden, sampled)
    assert (hidden.device, hidden.shape) == (META, (len(work.ids), spec.hidden_size))
    assert (picked.device, len(picked)) == (META, len(work.blocks))


def test_ranks_on_gpus_meet_over_nccl(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are connected before the first step."""
    monkeypatch.setattr(ranks, "on_gpu", lambda device: True)
    monkeypatch.setattr(
        dist, "init_process_group",
        lambda backend, at, rank, world_size: calls.made.append(f"{backend} {rank}/{world_size}"),
    )  # fmt: skip
    monkeypatch.setattr(dist, "all_reduce", lambda sums: calls.made.append(f"sum on {sums.device}"))
    ranks.join(1, 2, 7, META)
    assert calls.made == ["nccl 1/2", "sum on meta"]


def test_agents_are_asked_for_gpus_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[tuple[object, ...]] = []

    class Agent:
        def ask(self, *what: object) -> object:
            questions.append(what)
            return ["0", "1"] if what == ("devices", "cuda") else "held"

    ray: Any = SimpleNamespace(nodes=list)
    monkeypatch.setattr(ray_launcher, "_connected", lambda stack: ray)
    monkeypatch.setattr(ray_launcher, "bundles_on", lambda *what: what)
    monkeypatch.setattr(ray_launcher, "_agents", lambda *what: [Agent()])
    monkeypatch.setattr(ray_launcher, "check_versions", lambda agents: None)
    monkeypatch.setattr(ray_launcher, "AgentsLauncher", lambda agents, token: agents)
    with ExitStack() as stack:
        ray_launcher.ray_launcher(stack, 1, None, 2)
    assert [what[:2] for what in questions] == [
        ("devices", "cuda"), ("hold", "0"), ("hold", "1"), ("end_with_parent",),
    ]  # fmt: skip


@pytest.mark.parametrize(("device", "on_cpu"), [("auto", False), ("cpu", True)])
def test_a_gpus_profile_needs_a_gpu_that_the_run_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, on_cpu: bool
) -> None:
    def refuses(hardware: object, name: str, *, on_cpu: bool) -> None:
        raise UsageError(f"{name} on a CPU: {on_cpu}")

    monkeypatch.setattr(engine, "require_gpu", refuses)
    told = pytest.raises(UsageError, match=f"torch on a CPU: {on_cpu}")
    with told, started(tmp_path, [], 1, device=device):
        pass


def test_without_a_gpu_its_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_monitor, "devices", list)
    with pytest.raises(UsageError, match=r"hardware=h100x1 is .*this machine's cpu"):
        gpu_monitor.require_gpu(zoo.hardware("h100x1"), "torch")
    monkeypatch.setattr(gpu_monitor, "devices", lambda: [{}])
    gpu_monitor.require_gpu(zoo.hardware("h100x1"), "torch")


def test_aegaeons_live_figures_have_a_gpus_words_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(hardware=zoo.hardware("h100x1"))
    monkeypatch.setattr(asked, "composing", lambda words: made)
    assert asked.live_words("aegaeon_fig07", "h100x1") == [asked.GPU, "hardware=h100x1"]
