"""Table 1: models, workloads and engines of the evaluation, and what the profiler calls each of
them: producer or consumer, with the memory that it lends or needs (R_m, a GPU)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aqua import most_paged_bytes, overrides
from plots.aqua_fig03 import plateau
from plots.aqua_prefix import PROMPT_TOKENS
from plots.aqua_table_bandwidth import model
from plots.aqua_table_rates import FIRST_SEED, constants, found, sampled
from plots.style import text_table
from systems.aqua.profiler.profile import context_bytes, generator_profile

EXPERIMENTS = ("aqua_fig08", "aqua_rates_high", "aqua_rates_low")
# Model, workload, engine, GPUs and type as printed.
PRINTED = {
    "Llama-3.1-70B, TP 2": ("ShareGPT", "vLLM + CFS", 2, "C"),
    "Yi-34B-200K": ("ShareGPT + prefill cache", "vLLM", 2, "C"),
    "OPT-30B": ("long prompt", "FlexGen", 1, "C"),
    "Llama-3.1-8B": ("ShareGPT", "vLLM", 1, "P"),
    "Llama-3.1-70B, TP 4": ("ShareGPT", "vLLM", 4, "P"),
    "sd-3": ("Parti prompts", "Diffusers", 1, "P"),
    "sdxl": ("Parti prompts", "Diffusers", 1, "P"),
    "kandinsky-2.2": ("Parti prompts", "Diffusers", 1, "P"),
    "musicgen": ("audio descriptions", "PyTorch", 1, "P"),
    "audiogen": ("audio descriptions", "PyTorch", 1, "P"),
}
LLMS = {
    "Llama-3.1-70B, TP 2": "llama70b_tp2_h100",
    "Llama-3.1-8B": "llama8b_h100",
    "Llama-3.1-70B, TP 4": "llama70b_tp4_h100",
}
CONTEXTS = {"Yi-34B-200K": ("yi-34b-200k", PROMPT_TOKENS), "OPT-30B": ("opt-30b", 8192)}


def table(points: Sequence[Point]) -> pd.DataFrame:
    """The profiler's role of each model, the printed one, and whether they are the same."""
    rates = [point for point in points if point.experiment.startswith("aqua_rates")]
    samples = pd.DataFrame([sampled(point) for point in rates if point.seed == FIRST_SEED])
    bursts = [point for point in points if overrides(point).get("system") == "aqua"]
    swap_bytes = {point.config_hash(): most_paged_bytes(point) for point in bursts}
    rows = []
    for name, (workload, engine, gpus, printed) in PRINTED.items():
        told: dict[str, object]
        if name in LLMS:
            of = samples[samples.served == LLMS[name]]
            best = found(of, LLMS[name])
            lends = best["role"] == "producer"
            balance = 1e9 * best["free_gb"] if lends else -max(swap_bytes.values())
            # No need of swap space: a producer of nothing (section 4.1).
            role = "consumer" if balance < 0 else "producer"
            runs = [*of.config_hash] if lends else [*of.config_hash, *swap_bytes]
            told = {"config_hash": " ".join(runs)}
        elif name in CONTEXTS:
            spec_name, tokens = CONTEXTS[name]
            spec = model(spec_name)
            token_bytes = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 2 // gpus
            balance, role = -context_bytes(1, tokens, token_bytes), "consumer"
            told = {"inputs": "ours"}
        else:
            threshold = int(constants()["producer_above_bytes"])
            made = generator_profile(name, "a100", plateau(name), threshold)
            balance, role = made.memory_balance, made.role
            told = {"inputs": "ours"}
        rows.append(
            {
                "model": name, "workload": workload, "served_by": engine, "gpus": gpus,
                "printed": printed, "role": role, "balance_gb": balance / 1e9,
                "same": float(role[0].upper() == printed), "seed": 0,
            } | told
        )  # fmt: skip
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    head = ["model", "workload", "engine", "GPUs", "type, printed", "profiler", "R_m (GB a GPU)"]
    shown = rows.assign(
        role=rows.role.str[0].str.upper(), balance_gb=rows.balance_gb.map("{:+.1f}".format)
    )
    columns = ["model", "workload", "served_by", "gpus", "printed", "role", "balance_gb"]
    cells = shown[columns].astype(str).to_numpy().tolist()
    return text_table(cells, head), (
        f"LLMs at the rates found (seed {FIRST_SEED} of the search); long contexts by arithmetic; "
        "image and audio models on the assumed curves of Fig. 3."
    )
