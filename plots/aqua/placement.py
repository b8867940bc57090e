"""Which models are producers and which consumers (Table 1), and where the placer puts them (section
5). R_m is the memory that a model lends (above 0) or needs, a GPU.

That of LLMs is from the profiler's files (conf/system/aqua/profiles), of long contexts from their
KV, of image and audio models from conf/producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from harness.experiments.compose import CONF
from plots.aqua.prefix import PROMPT_TOKENS
from plots.aqua.producers import plateau, producer
from plots.aqua.rates import constants
from plots.conf import read, spec
from plots.figure import Points, Words, text
from plots.runs import config
from systems.aqua.placer.assignment import ModelType, Servers, assign, counted
from systems.aqua.placer.matching import match
from systems.aqua.placer.mix import Modality, draw
from systems.aqua.profiler.profile import (
    MemoryProfile,
    context_bytes,
    generator_profile,
    read_profile,
)

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
PROFILES = CONF / "system" / "aqua" / "profiles"  # the profiler's files, by engine profile
LLMS = {
    "Llama-3.1-70B, TP 2": "llama3.1-70b-tp2-h100x8-sharegpt",
    "Llama-3.1-8B": "llama3.1-8b-tp1-h100x8-sharegpt",
    "Llama-3.1-70B, TP 4": "llama3.1-70b-tp4-h100x8-sharegpt",
}
CONTEXTS = {"Yi-34B-200K": ("yi-34b-200k", PROMPT_TOKENS), "OPT-30B": ("opt-30b", 8192)}


def profiles(points: Points) -> dict[str, MemoryProfile]:
    """The files of the profiler that the experiments' rates are from, of the runs' engine."""
    folder = PROFILES / config(points[0].folder)["engine"]["profile"]
    return {name: read_profile(folder / f"{file}.json") for name, file in LLMS.items()}


def roles(points: Points) -> pd.DataFrame:
    """The profiler's role of each model, the printed one, and whether they are the same."""
    profiled, rows = profiles(points), []
    for name, (workload, engine, gpus, printed) in PRINTED.items():
        told: dict[str, object] = {"inputs": "ours"}
        if name in LLMS:
            of = profiled[name]
            balance, role = of.memory_balance, of.role
            told = {"config_hash": " ".join(of.made_by["runs"])}
        elif name in CONTEXTS:
            model, tokens = CONTEXTS[name]
            token_bytes = spec(model).kv_bytes_per_token // gpus
            balance, role = -context_bytes(1, tokens, token_bytes), "consumer"
        else:
            threshold = int(constants()["producer_above_bytes"])
            made = generator_profile(name, "a100", plateau(name), threshold)
            balance, role = made.memory_balance, made.role
        rows.append(
            {
                "model": name, "workload": workload, "served_by": engine, "gpus": gpus,
                "printed": printed, "role": role, "balance_gb": balance / 1e9,
                "same": float(role[0].upper() == printed), "seed": 0,
            } | told
        )  # fmt: skip
    return pd.DataFrame(rows)


@text(
    "aqua_table_models",
    roles,
    ("aqua_rates_high", "aqua_rates_low"),
    head=["model", "workload", "engine", "GPUs", "type, printed", "profiler", "R_m (GB)"],
    quick="rows",
)
def table_models(rows: pd.DataFrame) -> tuple[Words, str]:
    """Table 1: models, workloads and engines of the evaluation, and what the profiler calls each of
    them: producer or consumer, with its R_m."""
    role, balance = rows.role.str[0].str.upper(), rows.balance_gb.map("{:+.1f}".format)
    columns = ["model", "workload", "served_by", "gpus", "printed", "role", "balance_gb"]
    shown = rows.assign(role=role, balance_gb=balance)[columns]
    return shown.astype(str).to_numpy().tolist(), (
        "R_m: of a GPU. LLMs: the profiler's files, medians of five seeds; long contexts: "
        "arithmetic; others: the curves of Fig. 3. AudioGen: 37.6 GB are its code's 35, as GiB."
    )


SEEDS = (0, 1, 2, 3, 4)
# Nodes of the solver's search. The paper gives it 5 s; so many nodes take 3 to 9 s on two busy
# cores, and what they prove does not depend on the machine.
NODES, LONG_S = 300, 600.0
NUM_GPUS = (16, 32, 64, 128)
GPUS_PER_SERVER = 8
AUDIO, VISION = ("audiogen", "musicgen"), ("sd-3", "sdxl", "kandinsky-2.2")  # Table 1


def placements(points: Points) -> pd.DataFrame:
    mix, asked = modalities(points), read("system/aqua/constants")["placer"]
    rows = [placed(mix, gpus, seed, asked) for gpus in NUM_GPUS for seed in SEEDS]
    drawn = pd.DataFrame(rows).assign(inputs="drawn", row="draw")
    pairs = pd.DataFrame(of_table_1(mix, asked)).assign(inputs="ours", row="pair", seed=0)
    return pd.concat([drawn, pairs], ignore_index=True)


# The producers of its shards that section 9.3 names.
PAIRS = {
    "Llama-3.1-70B, TP 2": {"Llama-3.1-8B", "audiogen"},
    "Yi-34B-200K, TP 2": {"sd-3", "kandinsky-2.2"},
    "OPT-30B": {"Llama-3.1-8B"},
}


def of_table_1(mix: Sequence[Modality], asked: Mapping[str, float]) -> list[dict[str, object]]:
    """The producers of each consumer if the cluster of 16 GPUs has each of Table 1's models, and a
    second Llama-3.1-8B on the GPU that is left: the paper does not list what it drew."""
    types = [each for modality in mix for each in modality.types]
    numbers = [2 if each.name == "Llama-3.1-8B" else 1 for each in types]
    rows: list[dict[str, object]] = []
    for here in assigned(types, numbers, 16, asked)[1]:
        of: dict[int, list[str]] = {}
        for shard, lends in sorted(match(here).items()):
            of.setdefault(shard.model, []).append(here[lends.model].name)
        for consumer, names in of.items():
            name = here[consumer].name
            rows.append(
                {
                    "gpus": 16, "consumer": name, "producers": " and ".join(names),
                    "as_published": len(PAIRS[name] & set(names)),
                }
            )  # fmt: skip
    return rows


def modalities(points: Points) -> list[Modality]:
    """Table 1's models with their R_m, in the shares of section 9.3."""
    of = {name: each.memory_balance for name, each in profiles(points).items()}
    yi, opt = spec("yi-34b-200k").kv_bytes_per_token, spec("opt-30b").kv_bytes_per_token
    llms = (
        ModelType("Llama-3.1-70B, TP 2", of["Llama-3.1-70B, TP 2"], 2),
        ModelType("Yi-34B-200K, TP 2", -PROMPT_TOKENS * yi // 2, 2),
        ModelType("OPT-30B", -8192 * opt, 1),
        ModelType("Llama-3.1-8B", of["Llama-3.1-8B"], 1),
        ModelType("Llama-3.1-70B, TP 4", of["Llama-3.1-70B, TP 4"], 4),
    )
    audio, vision = (
        tuple(ModelType(name, producer(name).free_bytes_at_peak, 1) for name in names)
        for names in (AUDIO, VISION)
    )
    return [Modality(0.1, audio), Modality(0.15, vision), Modality(0.75, llms)]


def placed(
    mix: Sequence[Modality], num_gpus: int, seed: int, asked: Mapping[str, float]
) -> dict[str, float]:
    models = draw(mix, num_gpus, np.random.default_rng(seed))
    gap, servers = assigned(*counted(models), num_gpus, asked)
    shards = sum(each.shards for each in models if each.memory_bytes < 0)
    matched = sum(len(match(here)) for here in servers)
    about = {"gpus": num_gpus, "seed": seed, "gap": round(gap, 6)}
    return about | {"shards": shards, "matched": matched}


def assigned(
    types: Sequence[ModelType], numbers: Sequence[int], num_gpus: int, asked: Mapping[str, float]
) -> tuple[float, list[list[ModelType]]]:
    """The gap that the solver proves, and the models that it puts on each server."""
    servers = Servers(
        num_servers=num_gpus // GPUS_PER_SERVER, gpus_per_server=GPUS_PER_SERVER,
        gpu_memory_bytes=int(asked["gpu_memory_bytes"]),
    )  # fmt: skip
    made = assign(types, numbers, servers, time_limit_s=LONG_S, most_nodes=NODES)
    placed = (zip(types, counts, strict=True) for counts in made.counts)
    return made.gap, [[each for each, n in of for _ in range(n)] for of in placed]


@text(
    "aqua_table_placer",
    placements,
    ("aqua_rates_high",),
    head=["GPUs", "proven gap (mean, worst)", "consumers' shards", "with a producer"],
    quick="rows",
)
def table_placer(rows: pd.DataFrame) -> tuple[Words, str]:
    """Section 5: the placer on clusters of 16 to 128 GPUs: the gap that the solver proves within
    so many nodes of its search, and how many consumers' shards get a producer of their server."""
    cells, drawn = [], rows[rows.row == "draw"]
    for gpus, of in drawn.groupby("gpus"):
        gap = f"{100 * of.gap.mean():.2g} %, {100 * of.gap.max():.2g} %"
        cells.append([f"{gpus:g}", gap, f"{of.shards.sum():g}", f"{of.matched.sum():g}"])
    return cells, (
        f"HiGHS, {NODES} nodes, about the paper's 5 s on our machine; models drawn 10 % audio, "
        f"15 % vision; {drawn.seed.nunique()} draws."
    )
