"""Published runs of which every request is known, replayed request by request: LLMServingSim's.

Arrivals are when vLLM queued a request, lengths are exact. The boards' silicon is of their kernel
profiles alone. The engine was in the process of its client, so that the API's part of TTFT is
taken off. Hits in the prefix cache, at most 7.6 % of all prompt tokens, are not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.calibrate import zoo
from harness.calibrate.profiles import Floats, read_table
from harness.calibrate.published import folder
from harness.fidelity.play import play
from harness.fidelity.replay import engine_config
from harness.request import Request
from harness.sim.engine import SimEngine

BUDGET = {"max_num_batched_tokens": 2048}  # of all runs (SOURCE.txt)


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    model: str
    gpu: str
    tp: int
    max_num_seqs: int
    kv_blocks: int | None  # None: memory was never short, so that our own estimate serves


RUNS = (
    Run("RTX4090_Llama-3.1-8B", "llama3.1-8b", "rtx4090", 1, 256, 2588),
    Run("RTXPRO6000_Llama-3.1-8B", "llama3.1-8b", "rtxpro6000", 1, 128, None),
    Run("RTXPRO6000_Qwen3-32B", "qwen3-32b", "rtxpro6000", 2, 128, None),
)
METRICS = ("ttft", "tpot", "e2e")


def replay_run(run: Run, profile: str, published: Path | None) -> pd.DataFrame:
    """One row per request: METRICS measured, simulated (sim_) and by LLMServingSim (their_), in
    seconds, and sim_first_s and sim_last_s on the run's clock."""
    path = folder(published, "llmservingsim") / f"bench_{run.name}_requests.csv"
    numbers = ["measured_queued_s", "input_toks", "output_toks"]
    numbers += [f"{who}{m}_ms" for who in ("", "llmservingsim_") for m in METRICS]
    table = read_table(path, [], numbers).sort_values("measured_queued_s", ignore_index=True)
    config = engine_config(profile, num_kv_blocks=run.kv_blocks)
    hardware = replace(zoo.device(run.gpu), num_devices=run.tp)
    columns = table.measured_queued_s, table.input_toks, table.output_toks
    requests = [
        Request(i, float(queued_s), run.model, int(prompt), int(output))
        for i, (queued_s, prompt, output) in enumerate(zip(*columns, strict=True))
    ]
    limits: dict[str, object] = {"max_num_seqs": run.max_num_seqs, **BUDGET}
    played = play(requests, zoo.sharded(run.model, run.tp), hardware, SimEngine(config), limits)
    api_s = config.costs.path_s if config.costs else 0.0
    gaps = np.maximum(table.output_toks.to_numpy(float) - 1, 1)
    found: dict[str, Any] = {"queued_s": played.sent_s, "output_tokens": table.output_toks}
    found |= {m: table[f"{m}_ms"] / 1e3 for m in METRICS}
    found["sim_ttft"] = played.first_s - played.sent_s - api_s
    found["sim_tpot"] = (played.last_s - played.first_s) / gaps
    found["sim_e2e"] = played.last_s - played.sent_s - api_s
    found |= {f"their_{m}": table[f"llmservingsim_{m}_ms"] / 1e3 for m in METRICS}
    found |= {"sim_first_s": played.first_s - api_s, "sim_last_s": played.last_s - api_s}
    return pd.DataFrame(found)


def curves(run: Run, replayed: pd.DataFrame, published: Path | None) -> pd.DataFrame:
    """`running` and `waiting` per second, as vLLM counted them and simulated. Simulated requests
    run from their first token, as no log says when a prompt is first scheduled."""
    path = folder(published, "llmservingsim") / f"bench_{run.name}_timeseries.csv"
    table = read_table(path, [], ["t", "running", "waiting"])
    times = table.t.to_numpy(float)
    running = _between(times, replayed.sim_first_s, replayed.sim_last_s)
    waiting = _between(times, replayed.queued_s, replayed.sim_first_s)
    found = table[["t", "running", "waiting"]].rename(columns={"t": "t_s"})
    return found.assign(sim_running=running, sim_waiting=waiting)


def _between(times: Floats, begin: pd.Series, end: pd.Series) -> Floats:
    """How many of (begin, end] hold each time."""
    started = np.searchsorted(np.sort(begin), times, side="right")
    ended = np.searchsorted(np.sort(end), times, side="right")
    return (started - ended).astype(float)
