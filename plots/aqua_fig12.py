"""Fig. 12: a lender's load doubles, it reclaims; the borrower's tokens/s fall and come back.

(a) its free memory and what it lends, (b) tokens/s of OPT-30B, beside the same on DRAM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import config, events, overrides, requests
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_fig12", "aqua_fig12_steady")
STEP_S = 2.0
LINES = {"flexgen_aqua": ("AQUA", PALETTE[2]), "flexgen": ("FlexGen, DRAM", PALETTE[1])}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = pd.concat([timeline(p) for p in points if p.experiment == "aqua_fig12"])
    shown = rows[rows.seed == 0]
    made, axes = figure(1, 2, width=9, height=4.0)
    aqua = shown[shown.system == "flexgen_aqua"]
    axes[0].plot(aqua.at_s, aqua.lent_gb, color=PALETTE[2], label="lent")
    axes[0].plot(aqua.at_s, aqua.waiting, color="0.5", lw=0.8, label="requests that wait")
    axes[0].set(title="(a) the lender, Llama-3.1-8B", xlabel="seconds", ylabel="GB, or requests")
    for system, (label, colour) in LINES.items():
        run = shown[shown.system == system]
        axes[1].plot(run.at_s, run.tokens_per_s, color=colour, label=label)
    axes[1].set(title="(b) the borrower, OPT-30B", xlabel="seconds", ylabel="tokens/s")
    for panel in axes:
        marks(panel)
        panel.legend()
    stamp(
        made, points, "OPT-30B's prompts of 8,192 tokens begin at 60 s; the lender's rate doubles "
        "from 120 to 180 s (dashed). Copies overlap. Seed 0.",
    )  # fmt: skip
    table = pd.concat([rows.assign(row="time"), runs(rows), steady(points)], ignore_index=True)
    return publish(made, table, folder, Path(__file__).stem)


def marks(panel: Axes) -> None:
    for at_s in (60, 120, 180):
        panel.axvline(at_s, color="0.6", lw=0.8, ls="--")


def timeline(
    point: Point, borrower: str = "opt", lender: str = "llama", step_s: float = STEP_S
) -> pd.DataFrame:
    """In steps: what is lent, who waits for a first token, the borrower's tokens/s. `borrower`,
    `lender`: the names that requests carry."""
    opt, llama = requests(point, borrower), requests(point, lender)
    tokens = np.concatenate([np.asarray(t) for t in opt.token_times_s])
    end_s = max(tokens.max(), llama.arrival_s.max() + llama.rct_s.max())
    at_s = np.arange(0, min(end_s, 600.0), step_s)
    leases = events(point, "lease") if "lease" in kinds(point) else pd.DataFrame()
    lent = np.zeros(len(at_s))
    rows: Iterable[Any] = leases.itertuples()
    for lease in rows:
        lent += np.where((at_s >= lease.start_s) & (at_s < lease.end_s), lease.bytes / 1e9, 0)
    waiting = [
        int(((llama.arrival_s <= t) & (llama.arrival_s + llama.ttft_s > t)).sum()) for t in at_s
    ]
    counts, _ = np.histogram(tokens, bins=np.append(at_s, at_s[-1] + step_s))
    return pd.DataFrame(
        {
            "system": overrides(point).get("system", "aqua"), "seed": point.seed, "at_s": at_s,
            "lent_gb": lent, "waiting": waiting, "tokens_per_s": counts / step_s,
            "config_hash": point.config_hash(),
        }
    )  # fmt: skip


def kinds(point: Point) -> set[str]:
    assert point.path is not None
    column = pd.read_parquet(point.path / "events.parquet", columns=["kind"]).kind
    return set(column)


def runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each run: the most that was lent and that waited; tokens/s before and in the load."""
    found = []
    for (system, seed), run in rows.groupby(["system", "seed"], sort=False):
        before = run[(run.at_s >= 80) & (run.at_s < 120)]
        during = run[(run.at_s >= 140) & (run.at_s < 180)]
        found.append(
            {
                "row": "run", "system": system, "seed": seed, "peak_lent_gb": run.lent_gb.max(),
                "least_lent_gb": during.lent_gb.min(), "peak_waiting": run.waiting.max(),
                "before_tokens_per_s": before.tokens_per_s.mean(),
                "during_tokens_per_s": during.tokens_per_s.mean(),
                "config_hash": run.config_hash.iloc[0],
            }
        )  # fmt: skip
    return pd.DataFrame(found)


def steady(points: Sequence[Point]) -> pd.DataFrame:
    """OPT-30B beside an idle lender: tokens/s once the first token is there."""
    found = []
    for point in points:
        if point.experiment.endswith("steady") and point.path is not None:
            overlap = bool(config(point)["system"]["consumer"]["overlap"])
            rate = 1 / requests(point).tpot_s.mean()
            found.append(
                {
                    "row": "steady", "system": overrides(point)["system"], "seed": point.seed,
                    "overlap": "on" if overlap else "off", "tokens_per_s": rate,
                    "config_hash": point.config_hash(),
                }
            )  # fmt: skip
    return pd.DataFrame(found)
