"""Section 5: the placer on clusters of 16 to 128 GPUs: the gap that the solver proves in 5 s, and
how many consumers' shards get a producer of their server.

R_m: producers' from conf/producer and the profiler's search, consumers' from their bursts' paging
and the KV of their long prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from harness.experiments.compose import CONF
from harness.experiments.points import Point
from plots.aqua import most_paged_bytes, overrides
from plots.aqua_fig07 import producer
from plots.aqua_table_rates import FIRST_SEED, found, sampled
from plots.style import text_table
from systems.aqua.placer.assignment import ModelType, Servers, assign, counted
from systems.aqua.placer.matching import match
from systems.aqua.placer.mix import Modality
from systems.aqua.placer.mix import draw as drawn

EXPERIMENTS = ("aqua_fig08", "aqua_rates_high")
SEEDS = (0, 1, 2, 3, 4)
NUM_GPUS = (16, 32, 64, 128)
GPUS_PER_SERVER = 8
AUDIO, VISION = ("audiogen", "musicgen"), ("sd-3", "sdxl", "kandinsky-2.2")  # Table 1


def table(points: Sequence[Point]) -> pd.DataFrame:
    constants = yaml.safe_load((CONF / "system/aqua/constants.yaml").read_text())["placer"]
    mix = modalities(points)
    rows = [placed(mix, gpus, seed, constants) for gpus in NUM_GPUS for seed in SEEDS]
    return pd.DataFrame(rows).assign(inputs="drawn")


def modalities(points: Sequence[Point]) -> list[Modality]:
    """Table 1's models with their R_m."""
    rates = [p for p in points if p.experiment == "aqua_rates_high" and p.seed == FIRST_SEED]
    served = pd.DataFrame([sampled(point) for point in rates])
    free = {
        str(name): float(found(of, str(name))["free_gb"]) for name, of in served.groupby("served")
    }
    bursts = [p for p in points if overrides(p).get("system") == "aqua"]
    llama70b = max(most_paged_bytes(point) for point in bursts)
    llms = (
        ModelType("Llama-3.1-70B, TP 2", -int(max(llama70b, 1e9)), 2),
        ModelType("Yi-34B-200K, TP 2", -int(100_000 * 2 * 60 * 8 * 128 * 2 / 2), 2),
        ModelType("OPT-30B", -(8192 * 2 * 48 * 56 * 128 * 2), 1),
        ModelType("Llama-3.1-8B", int(1e9 * free["llama8b_h100"]), 1),
        ModelType("Llama-3.1-70B, TP 4", int(1e9 * free["llama70b_tp4_h100"]), 4),
    )
    audio, vision = (
        tuple(ModelType(name, producer(name).free_bytes_at_peak, 1) for name in names)
        for names in (AUDIO, VISION)
    )
    return [Modality(0.1, audio), Modality(0.15, vision), Modality(0.75, llms)]  # section 9.3


def placed(
    mix: Sequence[Modality], num_gpus: int, seed: int, constants: dict[str, float]
) -> dict[str, object]:
    models = drawn(mix, num_gpus, np.random.default_rng(seed))
    types, numbers = counted(models)
    servers = Servers(
        num_servers=num_gpus // GPUS_PER_SERVER, gpus_per_server=GPUS_PER_SERVER,
        gpu_memory_bytes=int(constants["gpu_memory_bytes"]),
    )  # fmt: skip
    made = assign(types, numbers, servers, time_limit_s=constants["time_limit_s"])
    matched = 0
    for counts in made.counts:
        here = [each for each, n in zip(types, counts, strict=True) for _ in range(n)]
        matched += len(match(here))
    return {
        "gpus": num_gpus, "seed": seed, "gap": made.gap,
        "shards": sum(each.shards for each in models if each.memory_bytes < 0),
        "matched": matched,
    }  # fmt: skip


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    head = ["GPUs", "proven gap (mean, worst)", "consumers' shards", "with a producer"]
    cells = [
        [f"{gpus}", f"{100 * of.gap.mean():.2g} %, {100 * of.gap.max():.2g} %",
         f"{of.shards.sum()}", f"{of.matched.sum()}"]
        for gpus, of in rows.groupby("gpus")
    ]  # fmt: skip
    return text_table(cells, head), (
        f"HiGHS, 5 s; models drawn 10 % audio, 15 % vision; {rows.seed.nunique()} draws."
    )
