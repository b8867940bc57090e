"""Table 1: models, workloads and engines of the evaluation, and what the profiler calls each of
them: producer or consumer, with the memory that it lends or needs (R_m, a GPU)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import overrides
from plots.aqua_fig03 import plateau
from plots.aqua_prefix import PROMPT_TOKENS
from plots.aqua_table_bandwidth import model
from plots.aqua_table_rates import constants, found, sampled
from plots.aqua_table_swap import most_paged_bytes
from plots.caption import stamp
from plots.style import figure
from systems.aqua.profiler.profile import MemoryProfile, context_bytes, generator_profile

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


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    table = pd.DataFrame(verdicts(points)).assign(seed=0)
    made, (panel,) = figure(1, 1, width=9, height=3.2)
    panel.axis("off")
    head = ["model", "workload", "engine", "GPUs", "type, printed", "profiler", "R_m (GB a GPU)"]
    text = [
        [name, *map(str, PRINTED[str(name)]), row.role[0].upper(), f"{row.balance_gb:+.1f}"]
        for name, row in table.set_index("model").iterrows()
    ]
    cells = panel.table(text, colLabels=head, loc="center", cellLoc="center")
    cells.auto_set_font_size(False)
    cells.set_fontsize(8)
    cells.auto_set_column_width(range(len(head)))
    cells.scale(1, 1.25)
    stamp(
        made, points, "LLMs at the rates found (the first seed of the search); long contexts by "
        "arithmetic; image and audio models on the assumed curves of Fig. 3.",
    )  # fmt: skip
    return publish(made, table, folder, Path(__file__).stem)


def verdicts(points: Sequence[Point]) -> list[dict[str, object]]:
    """The profiler's role of each model, the printed one, and whether they are the same."""
    threshold = int(constants()["producer_above_bytes"])
    runs = [p for p in points if p.experiment.startswith("aqua_rates") and p.path is not None]
    samples = pd.DataFrame([sampled(p) for p in runs])
    samples = samples[samples.seed == samples.seed.min()]
    swap = max(
        most_paged_bytes(p) for p in points
        if p.experiment == "aqua_fig08" and overrides(p)["system"] == "aqua"
    )  # fmt: skip
    rows = []
    for name, (_, _, gpus, printed) in PRINTED.items():
        if name in LLMS:
            best = found(samples[samples.served == LLMS[name]], LLMS[name])
            lends = best["role"] == "producer"
            balance = 1e9 * float(str(best["free_gb"])) if lends else -swap
            # No need of swap space: a producer of nothing (section 4.1).
            role = "consumer" if balance < 0 else "producer"
        elif name in CONTEXTS:
            spec_name, tokens = CONTEXTS[name]
            spec = model(spec_name)
            token_bytes = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 2 // gpus
            balance, role = -context_bytes(1, tokens, token_bytes), "consumer"
        else:
            made: MemoryProfile = generator_profile(name, "a100", plateau(name), threshold)
            balance, role = made.memory_balance, made.role
        rows.append(
            {
                "model": name, "printed": printed, "role": role, "balance_gb": balance / 1e9,
                "same": float(role[0].upper() == printed),
            }
        )  # fmt: skip
    return rows
