"""Which loads miss ServerlessLLM's host caches, by what memory a host has: Fig. 4."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from plots.blitzscale.runs import MEASURES, Run, runs, saved
from plots.conf import spec
from plots.figure import Panels, Points, picture
from plots.panels import Look, lines
from plots.style import PALETTE, log_scale

SHOWN_SEED = 0  # the seed of what is drawn over time
SPARES = {"near": "beside a copy", "spread": "where most are free"}
SEVERAL, MODELS = "burstgpt_models", 8  # a workload, and the models that it asks for
PUBLISHED = (20, 46)  # % of loads that miss
SETTINGS = {  # what idle models do with their last GPUs, and the factor on the trace's rate
    "keep x10": Look("idle models keep GPUs", PALETTE[0], "o"),
    "give x10": Look("idle models give GPUs back", PALETTE[1], "s"),
    "give x40": Look("the same, four times the rate", PALETTE[3], "^"),
}
BY_ROOM = {
    "share of loads that miss": "% of S-LLM's loads that miss",
    "share of mean TTFT saved": "% of S-LLM's mean TTFT saved",
}
BIN_S = 2.0


def misses(points: Points) -> pd.DataFrame:
    """Rows of several models have `fits`, how many of them a host's memory has room for, and
    `setting`."""
    rows: list[dict[str, Any]] = []
    found = sorted(runs(points, ("serverlessllm", "blitzscale")), key=_key)
    for key, group in groupby(found, _key):
        about, together = dict(zip(("setting", "spares", "fits"), key, strict=True)), list(group)
        made = list(saved(together, "serverlessllm", quantities=["mean TTFT"]))
        for run in together:
            made += _misses(run, over_time=about["fits"] == MODELS)
        rows += [row | about for row in made]
    return pd.DataFrame(rows)


def _key(run: Run) -> tuple[str, str, int]:
    """`setting`, `spares`, `fits`; of one model the setting is empty."""
    config = run.config()
    room = int(config["hardware"]["host_memory_bytes"] // spec("llama3-8b").weight_bytes)
    idle = "keep" if config["system"]["min_prefills"] else "give"
    setting = f"{idle} x{config['workload']['scale']['rate']:g}" if run.workload == SEVERAL else ""
    return setting, config["system"]["spares"], min(MODELS, room)


def _misses(run: Run, *, over_time: bool) -> Iterator[dict[str, Any]]:
    found = run.loads()
    missed = found.source.str.startswith("ssd").to_numpy()
    values = {"share of loads that miss": missed.mean() if len(found) else np.nan}
    values |= {"loads": len(found), "mean TTFT": MEASURES["mean TTFT"](run)}
    made = run.rows(values)
    if over_time and run.seed == SHOWN_SEED:
        bins = np.arange(0, found.start_s.max() + BIN_S, BIN_S)
        for name, start_s in (("scaled", found.start_s), ("missed", found.start_s[missed])):
            counts, _ = np.histogram(start_s, bins)
            made += run.curve(name, bins[:-1], counts.astype(float))
    yield from (row | {"config_hash": run.point.config_hash()} for row in made)


@picture(
    "blitzscale_fig04", misses,
    (
        "blitzscale_models", "blitzscale_models_idle", "blitzscale_models_spread",
        "blitzscale_fig17", "blitzscale_fig17_cold",
    ),
    shape=(2, 2), size=(9, 6),
)  # fmt: skip
def fig04(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 4: instances that ServerlessLLM scales, and those that miss the host cache: eight models
    of 8B on four hosts, after a warm-up. A host misses a model that it has not had for the TTL, or
    that its memory has no room for: "the scarce host memory cannot support the caching all models"
    (section 3). Which free GPU is taken is open in the paper: one on a host that has the model if
    there is one, or one on the host with the most free GPUs. Above: over time, all models fit.
    Below: by how many models a host's memory fits; shaded is what the paper has. BlitzScale needs
    one copy of each model in the cluster, which is two models a host."""
    several = rows[rows.workload == SEVERAL]
    theirs = several[several.system == "serverlessllm"]
    for panel, spares in zip(axes, SPARES, strict=False):
        fitting = (theirs.spares == spares) & (theirs.fits == MODELS)
        mine = theirs[fitting & (theirs.setting == next(iter(SETTINGS)))]
        for name, colour in (("scaled", "0.7"), ("missed", PALETTE[3])):
            bars = mine[mine.quantity == name]
            panel.bar(bars.x, bars.value, BIN_S, align="edge", color=colour, label=name)
        share = mine[mine.quantity == "share of loads that miss"].value.mean()
        panel.set_title(f"new GPUs {SPARES[spares]}: {share:.0%} miss")
        panel.set(xlabel="seconds", ylabel="instances in 2 s")
        panel.legend()
    near = theirs[theirs.spares == "near"]
    shown = pd.concat([near, several[several.against == "serverlessllm"]])
    for panel, (quantity, title) in zip(axes[2:], BY_ROOM.items(), strict=True):
        of_panel = shown[shown.quantity == quantity]
        lines(panel, of_panel, "fits", "value", SETTINGS, by="setting", factor=100)
        log_scale(panel, "x")
        panel.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        panel.set(title=title, xlabel="models that a host's memory fits", ylabel="%")
        panel.set_ylim(0, None)
    axes[2].axhspan(*PUBLISHED, color="0.9")
    axes[2].legend()
    return (
        f"Eight models of 8B, BurstGPT, models drawn, TTL 5 min. Above: seed {SHOWN_SEED}, titles "
        "all seeds. Below: mean and range of seeds; shaded: the paper."
    )
