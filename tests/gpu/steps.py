"""The steps of `python -m tests.gpu`: each one command, bounded in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = "llama3.2-1b"  # of whole runs: several instances fit into one GPU
LARGE = "llama3.1-8b"  # of a step's time
PYTEST = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
RUN = ("tracking=none", "figure=null", "progress=false", "engine=torch", "engine.device=cuda")


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    asks: str  # in a line
    limit_s: int
    words: Sequence[str]  # of python; {hardware}: profile of one GPU, {out}: the step's folder
    num_gpus: int = 1  # fewer: skipped
    needs: str | None = None  # a package without which it is skipped


def system(name: str, asks: str, num_instances: int, *words: str) -> Step:
    """A live run of a system, its instances on one GPU or shared out over several."""
    return Step(name, asks, 90, ("-m", "harness", *overrides(name, num_instances, *words)))


def overrides(name: str, num_instances: int, *words: str) -> tuple[str, ...]:
    models = () if any("model_set" in word for word in words) else (f"model={MODEL}",)
    return (
        f"+system={name}", "+workload=burstgpt", *RUN, "hardware={hardware}", *models,
        f"hardware.num_devices={num_instances}", f"hardware.devices_per_node={num_instances}",
        "workload.num_requests=100", "hydra.run.dir={out}/run", *words,
    )  # fmt: skip


RATE = "workload.scale.to_rate_per_s={}"
POOL = (
    "model_set=tiny", "engine.pool.host_kv_bytes=8589934592",
    "engine.pool.model_cache_bytes=8589934592", "engine.pool.stage_buffer_bytes=268435456",
)  # fmt: skip

STEPS = (
    Step("contract", "devices and systems keep the contracts of tests/contract", 180,
         (*PYTEST, "-m", "live", "tests/contract")),
    Step("tokens", "tokens equal transformers', and those of an undisturbed run; copies are whole",
         170, (*PYTEST, "tests/unit/engine/test_on_device.py",
               "tests/integration/test_torch_engine.py", "tests/integration/test_torch_batches.py",
               "tests/integration/test_torch_pool.py")),
    Step("region", "two processes share a GPU's memory by a CUDA IPC handle", 90,
         (*PYTEST, "tests/integration/test_vllm_device_region.py"), needs="vllm"),
    Step("calibrate", f"conf/hardware/local_gpu.yaml, a profile of this GPU with {MODEL}", 180,
         ("-m", "harness", "calibrate", "measure", "--model", MODEL, "--hardware",
          "{hardware}")),
    Step("calibrate_server", "conf/hardware/local_vllm_gpu.yaml, the same of a vLLM server", 150,
         ("-m", "harness", "calibrate", "measure", "--engine", "vllm", "--model", MODEL,
          "--num-requests", "40", "--hardware", "{hardware}"), needs="vllm"),
    Step("decode", f"a decode of {LARGE} with 1, 16 and 64 requests, beside reading its bytes",
         120, ("-m", "tests.gpu.decode", "--model", LARGE, "--hardware", "{hardware}",
               "--json", "{out}/decode.json")),
    system("vllm", "the baseline", 2, RATE.format(8)),
    system("llumnix", "KunServe's baseline", 4, RATE.format(8)),
    system("kunserve", "layers are dropped, KV exchanged, layers restored", 4, RATE.format(16),
           "engine.num_kv_blocks=192", "workload.lengths.max_prompt_tokens=1024"),
    system("blitzscale", "instances scale out and in", 4, RATE.format(16)),
    system("distserve", "prefills and decodes apart", 4, RATE.format(8)),
    system("aqua", "KV is paged to a neighbour", 2, RATE.format(8),
           "engine.num_kv_blocks=512"),
    system("aegaeon", "models take turns", 2, RATE.format(4), *POOL),
    system("serverlessllm", "Aegaeon's baseline", 2, RATE.format(4), *POOL),
    Step("switch", "a model switch by its parts, T0 to T3", 180,
         ("-m", "harness", "-m", "+experiment=aegaeon_fig07",
          "experiment/aegaeon/machine@_global_=gpu", "hardware={hardware}",
          "hardware.num_devices=2", "hardware.devices_per_node=2",
          "hydra.sweep.dir={out}/sweep")),
    # 60 s each, where other runs have 90: all steps together take 40 minutes at most.
    Step("peers", "copies between two GPUs", 60,
         ("-m", "harness", *overrides("kunserve", 4, RATE.format(16),
          "engine.num_kv_blocks=192")), num_gpus=2),
    Step("ranks", "an instance of two ranks, over NCCL", 60,
         ("-m", "harness", *overrides("vllm", 2, RATE.format(8), "model.tp=2")), num_gpus=2),
    Step("server", "a vLLM server by the same command", 180,
         ("-m", "harness", "+system=vllm", "+workload=burstgpt", "engine=vllm",
          f"model={MODEL}", "hardware={hardware}", "workload.num_requests=60", "tracking=none",
          "figure=null", "progress=false", "hydra.run.dir={out}/run"), needs="vllm"),
    Step("parity", f"the simulator beside live runs of {MODEL}", 220,
         ("-m", "harness", "fidelity", "--model", MODEL, "--hardware", "{hardware}",
          "--workloads", "azure_conv", "--loads", "0.3", "0.9", "--num-requests", "200",
          "--passes", "1", "--no-calibrate", "--runs", "{out}/runs", "--out", "{out}")),
    Step("examples", "the first-light examples", 90,
         (*PYTEST, "tests/integration/test_examples.py")),
)  # fmt: skip


def command(step: Step, hardware: str, out: Path) -> list[str]:
    """The words behind `python`."""
    return [word.replace("{hardware}", hardware).replace("{out}", str(out)) for word in step.words]
