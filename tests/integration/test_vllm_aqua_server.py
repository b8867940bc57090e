"""AQUA's plug-in in a real vLLM server, as engine=vllm starts it: tokens, and where KV was."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.clock import WallLoop
from harness.configuration.config import settings
from harness.configuration.options import plain
from harness.drivers.vllm import VllmEngine
from harness.engine_api import Experiment
from harness.placement import Demand
from harness.records.device_events import summarise_events
from harness.records.record import Recorder
from systems.aqua.plugin.servers import SCHEDULER, AquaInVllm
from tests.checkpoints import save_checkpoint
from tests.integration.aqua_offline import prompt
from tests.integration.test_vllm_aqua import BLOCK_BYTES, JOBS, REQUESTS, TIGHT, job, run_jobs
from tests.running import ROOT, composed, hardware_profile, model_spec

pytestmark = [pytest.mark.live, pytest.mark.vllm]


def plugin_server(model: Path, run_dir: Path, system: str) -> tuple[VllmEngine, Experiment]:
    """A server as `engine=vllm +system=...` starts it, with as little KV as the offline engines."""
    values = plain(composed(f"+system={system}", "engine=vllm"))["system"]
    config = settings(values, AquaInVllm, "system")
    config.scheduler.batch_tokens, config.max_num_seqs = 64, 16
    config.variants["paper"].scheduler.slice_iterations = 5
    config.lender.idle_bytes = 64 * BLOCK_BYTES
    spec = replace(model_spec("tiny-llama"), path=str(model))
    engine = VllmEngine(
        VllmEngine.Config(
            num_kv_blocks=TIGHT, block_tokens=32, gpu_memory_utilization=0.9,
            cpu_kv_cache_bytes=1 << 28, load_format="safetensors", request_timeout_s=300.0,
            start_timeout_s=300.0,
            extra_args=["--enforce-eager", "--skip-tokenizer-init", "--max-model-len", "256"],
            extra_env={"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        )
    )  # fmt: skip
    hardware, models = hardware_profile("local_x2"), {"default": spec}
    placements = AquaInVllm.place(config, models, hardware, Demand({}))
    return engine, Experiment(
        loop=WallLoop(), recorder=Recorder([]), models=models, hardware=hardware, run_dir=run_dir,
        placements=placements, seed=0, scheduler={}, announce=print,
        plugin=partial(AquaInVllm.plugin, config, placements),
    )  # fmt: skip


def answered(url: str, i: int) -> list[int]:
    """Token ids of request i, by the server."""
    body = {
        "model": "default", "prompt": prompt(i, REQUESTS[i][1]), "max_tokens": REQUESTS[i][2],
        "temperature": 0, "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    asked = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=300) as answer:
        ids: list[int] = json.load(answer)["choices"][0]["token_ids"]
    return ids


def test_a_servers_tokens_are_stocks_while_it_pages_to_its_producer(
    tmp_path: Path,
) -> None:
    """All requests at once, which do not fit."""
    model = tmp_path / "checkpoint"
    save_checkpoint(model_spec("tiny-llama"), model)
    stock = run_jobs({"stock": job(model, JOBS["stock"])}, ROOT, tmp_path)["stock"]
    engine, experiment = plugin_server(model, tmp_path, "aqua")
    with engine.start(experiment) as cluster:
        (server,) = engine.resolved()["servers"].values()
        endpoint: Any = cluster.endpoints[0]
        assert server["scheduler_cls"] == SCHEDULER
        with ThreadPoolExecutor(len(REQUESTS)) as pool:
            tokens = list(pool.map(partial(answered, endpoint.target.url), range(len(REQUESTS))))
    assert tokens == [stock["tokens"][str(i)] for i in range(len(REQUESTS))]
    summary = summarise_events(experiment.recorder.events, 1.0)
    assert summary["plugin"]["preemptions"] >= 5
    assert summary["plugin"]["lost_blocks"] == 0
    moved = summary["kv_moves"]
    out, back = moved["page out to lease"], moved["page in from lease"]
    assert out["bytes"] == back["bytes"] > 0
    assert out["requests"] == summary["plugin"]["preemptions"]
    assert not [p for p in psutil.process_iter(["cmdline"]) if is_of(p.info["cmdline"], tmp_path)]


def is_of(words: list[str] | None, folder: Path) -> bool:
    return str(folder) in " ".join(words or [])
