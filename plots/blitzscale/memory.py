"""Which loads miss ServerlessLLM's host caches, by what memory a host has (section 3)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pandas as pd

from plots.blitzscale.runs import MEASURES, Run, from_ssd, runs, saved
from plots.conf import spec
from plots.figure import Panels, Points, picture
from plots.panels import Look, lines
from plots.style import PALETTE, log_scale

MODELS = 8  # of the runs
PUBLISHED = (20, 46)  # % of loads that miss
GIVE, KEEP = "idle models give GPUs back", "idle models keep GPUs"
CACHED = {
    f"serverlessllm, {GIVE}": Look(f"S-LLM, {GIVE}", PALETTE[3], "o"),
    f"serverlessllm, {KEEP}": Look(f"S-LLM, {KEEP}", PALETTE[1], "s"),
    f"blitzscale, {GIVE}": Look(f"BlitzScale, {GIVE}", PALETTE[0], "^"),
}


def memory(points: Points) -> pd.DataFrame:
    """Rows have `fits`, how many of the models a host's memory has room for, and `idle`."""
    rows: list[dict[str, Any]] = []
    for (fits, idle), group in groupby(sorted(runs(points), key=_key), _key):
        together, about = list(group), {"fits": fits, "idle": idle}
        made = list(saved(together, "serverlessllm", quantities=["mean TTFT"]))
        for run in together:
            values = {"share of loads that miss": from_ssd(run), "loads": len(run.loads())}
            values["mean TTFT"] = MEASURES["mean TTFT"](run)
            made += run.rows(values, config_hash=run.point.config_hash())
        rows += [row | about | {"series": f"{row['system']}, {idle}"} for row in made]
    return pd.DataFrame(rows)


def _key(run: Run) -> tuple[int, str]:
    config = run.config()
    room = config["hardware"]["host_memory_bytes"] // spec("llama3-8b").weight_bytes
    return min(MODELS, int(room)), KEEP if config["system"]["min_prefills"] else GIVE


@picture(
    "blitzscale_memory", memory,
    (
        "blitzscale_memory", "blitzscale_memory_blitzscale", "blitzscale_memory_kept",
        "blitzscale_models",
    ),
    shape=(1, 2), size=(9, 3.6), legend=3,
)  # fmt: skip
def by_memory(axes: Panels, rows: pd.DataFrame) -> str:
    """Section 3: "the scarce host memory cannot support the caching all models". Eight models of 8B
    on four hosts, after a warm-up. A host misses a model that it has not had for the TTL, or that
    its memory has no room for. Shaded: the paper's Fig. 4. BlitzScale needs one copy of each model
    in the cluster, which is two models a host, and refuses to serve with less."""
    shown = (("share of loads that miss", 100, "% of loads from SSD"), ("mean TTFT", 1, "s"))
    for panel, (quantity, factor, unit) in zip(axes, shown, strict=True):
        of_panel = rows[rows.quantity == quantity]
        lines(panel, of_panel, "fits", "value", CACHED, by="series", factor=factor)
        log_scale(panel, "x")
        panel.set_xticks([1, 2, 4, MODELS], ["1", "2", "4", "8"])
        panel.minorticks_off()
        panel.set(title=quantity, xlabel="models of 8 that a host's memory fits", ylabel=unit)
    axes[0].axhspan(*PUBLISHED, color="0.9", zorder=0)
    axes[1].set_ylim(0, None)
    return (
        "Eight models of 8B, BurstGPT, models drawn, TTL 5 min. Mean and range of seeds; shaded: "
        "the paper."
    )
