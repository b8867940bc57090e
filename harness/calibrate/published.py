"""Readers of measurements of real serving engines on GPUs that others published.

Each folder of shared/data/gpu_e2e has its origin, licence and caveats in a SOURCE.txt. What is read
becomes the zoo's names, SI units and the columns that `harness.fidelity replay` takes.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.calibrate import zoo
from harness.calibrate.profiles import DATA_DIR, Floats, read_profiles, read_table
from harness.cost.silicon import work

GPU_E2E = "gpu_e2e"
POINT = (
    "set", "run", "stage", "model", "gpu", "num_gpus", "tp", "max_num_seqs",
    "max_num_batched_tokens", "chunked_prefill", "prefix_caching", "distinct_prompts",
    "rate_per_s", "duration_s", "prompt_tokens", "output_tokens", "max_outstanding",
)  # fmt: skip
MEASURED = ("ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p90_s", "e2e_p99_s")
# SOURCE.txt of LLM-Inference-Bench: A100s of ALCF Polaris, of 40 GB.
BENCH_DEVICE = {"A100": "a100_40gb", "H100": "h100_sxm"}
BENCH_ENGINE = {"vLLM": "vllm_0.5", "TensorRT-LLM": "tensorrt_llm"}
# Models that the zoo has not: mixtures of experts, and layers that differ from one another.
NOT_IN_ZOO = (
    "Deci/DeciLM-7B", "mistralai/Mixtral-8x7B-v0.1", "BAAI/Aquila-7B", "EleutherAI/gpt-j-6b",
    "bigscience/bloom-7b1", "facebook/opt-6.7b", "Qwen/Qwen1.5-7B",
)  # fmt: skip
SURE_ROOM = 0.8  # of the KV memory by our estimate: more may have been preempted
BLIS_SEQS = 128  # max_num_seqs of every run (SOURCE.txt)
BLOCK_TOKENS = 16
KUBECON_BATCHED_TOKENS = 8192  # vLLM's default there (SOURCE.txt)
KUBECON_OUTSTANDING = 440  # 44 workers of 10 (SOURCE.txt)


def folder(directory: Path | None, name: str) -> Path:
    return (directory or DATA_DIR / GPU_E2E) / name


def offline_batches(directory: Path | None = None) -> pd.DataFrame:
    """LLM-Inference-Bench: model, device, engine, tp, input_len, output_len, batch, latency_s.

    Without models that the zoo lacks, batches that may not have fitted into memory, and cells that
    are faster than reading the weights once a token at the datasheet's bandwidth.
    """
    path = folder(directory, "llm_inference_bench") / "measured.csv"
    numbers = ["tp", "input_len", "output_len", "batch_size", "latency_s"]
    table = read_table(path, ["gpu", "engine", "model"], numbers)
    table = table[~table.model.isin(NOT_IN_ZOO)]
    table = table.assign(
        model=table.model.map(zoo.model_name),
        device=table.gpu.map(BENCH_DEVICE),
        engine=table.engine.map(BENCH_ENGINE),
        batch=table.batch_size,
    )
    kept = [rows[_sound(key, rows)] for key, rows in table.groupby(["model", "device", "tp"])]
    columns = ["model", "device", "engine", "tp", "input_len", "output_len", "batch", "latency_s"]
    return pd.concat(kept)[columns].reset_index(drop=True)


def _sound(pair: tuple[Any, ...], rows: pd.DataFrame) -> pd.Series:
    """Which of a pair's batches fit surely and took at least the time of reading the weights."""
    model, device, tp = pair
    spec, hardware = zoo.sharded(model, int(tp)), zoo.device(device)
    node = zoo.node("engine/sim.yaml")
    usable = hardware.memory_bytes * node["memory_utilization"] - node["activation_reserve_bytes"]
    room_tokens = (usable * spec.tp - spec.weight_bytes) / spec.held_kv_bytes_per_token
    tokens = rows.batch * (rows.input_len + rows.output_len)
    least_s = rows.output_len * float(work(spec, hardware).read_s)
    found: pd.Series = (tokens <= SURE_ROOM * room_tokens) & (rows.latency_s > least_s)
    return found


def prefills(directory: Path | None = None, least_tokens: int = 1024) -> pd.DataFrame:
    """Aegaeon's clean prefill cells of at least `least_tokens`, where a device and not its
    launches sets the pace: model, device, tp, input_len, batch, prefill_s."""
    columns = ["model", "device", "tp", "input_len", "batch", "prefill_s"]
    table = pd.concat([pd.DataFrame(asdict(cells))[columns] for cells in read_profiles(directory)])
    return table[table.input_len * table.batch >= least_tokens].reset_index(drop=True)


def served_points(directory: Path | None = None) -> pd.DataFrame:
    """The stages of inference-perf's and BLIS's runs, in the columns of a replay, and what was
    measured: `set` (kubecon, kubecon_prefix, trainval13 or eval38), run, stage, ttft_mean_s,
    tpot_mean_s, e2e_mean_s, e2e_p90_s, e2e_p99_s, and capacity_per_s where a stage shows it."""
    table = pd.concat([_kubecon(directory), _blis(directory)], ignore_index=True)
    table["model"] = table.model.map(zoo.model_name)
    table["distinct_prompts"] = 100
    table["tpot_mean_s"] = table.tpot_nominal_ms / 1e3
    for name in ("ttft_mean", "e2e_mean", "e2e_p90", "e2e_p99"):
        table[f"{name}_s"] = table[f"{name}_ms"] / 1e3
    return table[[*POINT, *MEASURED, "capacity_per_s"]]


def _kubecon(directory: Path | None) -> pd.DataFrame:
    path = folder(directory, "kubecon_h100") / "measured.csv"
    table = read_table(path, ["variant", "model"], ["stage", "requested_rps", "tpot_nominal_ms"])
    sets = {"vllm": "kubecon", "vllm+chunking_and_prefix_caching": "kubecon_prefix"}
    table = table[table.variant.isin(sets) & (table.stage >= 0)]
    saturated = table.requested_rps > 1.02 * table.achieved_send_rps
    prefix = table.variant.map(sets) == "kubecon_prefix"
    return table.assign(
        set=table.variant.map(sets),
        run=table.variant,
        gpu="h100_sxm",
        num_gpus=1,
        max_num_batched_tokens=KUBECON_BATCHED_TOKENS,
        chunked_prefill=prefix,
        prefix_caching=prefix,
        rate_per_s=table.requested_rps,
        duration_s=60.0,
        prompt_tokens=table.prompt_tokens_mean.round().astype(int),
        output_tokens=table.output_tokens_requested,
        max_outstanding=KUBECON_OUTSTANDING,
        capacity_per_s=table.achieved_send_rps.where(saturated),
    )


def _blis(directory: Path | None) -> pd.DataFrame:
    path = folder(directory, "blis_vllm") / "measured.csv"
    names = ["set", "run", "model", "hardware", "workload"]
    table = read_table(path, names, ["stage", "rate_rps", "tpot_nominal_ms"])
    table = table[(table.stage >= 0) & (table.set != "first300")]
    # An overloaded run of which requests failed (SOURCE.txt, caveat 4), but for 8B, which held.
    table = table[(table.workload != "reasoning") | table.model.str.contains("8B")]
    return table.assign(
        gpu=table.hardware.map(zoo.device_name),
        num_gpus=table.tp,
        max_num_seqs=BLIS_SEQS,
        chunked_prefill=True,
        prefix_caching=True,
        rate_per_s=table.rate_rps,
        prompt_tokens=table.system_prompt_len + table.question_len,
        output_tokens=table.output_len,
        max_outstanding=np.nan,
        capacity_per_s=np.nan,
    )


def cached_tokens(prompt_tokens: Floats) -> Floats:
    """How much of a prompt seen before is cached: whole blocks, but never its last token."""
    found: Floats = np.floor((prompt_tokens - 1) / BLOCK_TOKENS) * BLOCK_TOKENS
    return found
