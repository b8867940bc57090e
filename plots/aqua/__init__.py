"""What AQUA's figures share: requests and paged bytes of runs, and how each system looks.

A row that says `inputs` comes from no run; "ours" is our constants and our cost model, "paper" the
paper's own numbers, "drawn" what was drawn at random. `mechanism` is what a run paged, in GB.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots import runs
from plots.panels import Look
from plots.style import PALETTE

# By the option of experiment/aqua/system.
SYSTEMS = {
    "fcfs": Look("vLLM (FCFS)", PALETTE[3]),
    "cfs_dram": Look("vLLM + CFS, DRAM, block by block", PALETTE[1]),
    "cfs_dram_gathered": Look("vLLM + CFS, DRAM, gathered", PALETTE[0]),
    "aqua": Look("AQUA", PALETTE[2]),
    "aqua_alone": Look("AQUA, nobody lends", PALETTE[4], line=":"),
}
STREAMING = {"flexgen": Look("FlexGen, DRAM", PALETTE[1]), "flexgen_aqua": Look("AQUA", PALETTE[2])}
# Where a system's mechanism pages to, as the purposes of copies call it.
PAGES_TO = {
    "cfs_dram": "DRAM", "cfs_dram_gathered": "DRAM", "flexgen": "DRAM",
    "aqua": "lease", "aqua_alone": "DRAM", "flexgen_aqua": "lease",
}  # fmt: skip


def requests(point: Point, model: str | None = None) -> pd.DataFrame:
    """A row per request in order of arrival: TTFT, TPOT and RCT (request completion time) in s; nan
    where it did not complete. `model`: only requests of this name."""
    rows = runs.requests(point.folder)
    if model is not None:
        rows = rows[rows.model == model]
    rows = rows.sort_values("arrival_s", kind="stable").reset_index(drop=True)
    done = rows.status == "completed"
    return rows.assign(
        order=np.arange(1, len(rows) + 1),
        tpot_s=rows.tpot_s.where(done),
        rct_s=(rows.last_s - rows.arrival_s).where(done),
    )


def paged_gb(point: Point, system: str) -> float:
    """GB of KV that left the device for where `system` pages to; nan if it pages nowhere."""
    if system not in PAGES_TO:
        return np.nan
    copies = runs.events(point.folder, "kv_move", "transfer")
    if copies.empty:
        return 0.0
    left = copies.purpose.str.contains(rf"\bout\b.*\b{PAGES_TO[system]}$")
    return float(copies.bytes[left].sum()) / 1e9


def most_paged_bytes(point: Point) -> float:
    """The most bytes of each device's KV that lay outside of it at once."""
    moves = runs.events(point.folder, "kv_move")
    if moves.empty:
        return 0.0
    signs = {"out": 1, "in": -1}
    moves = moves[moves.purpose.str.startswith("page ")].sort_values("end_s", kind="stable")
    change = moves.bytes * moves.purpose.str.split().str[1].map(signs)
    return float(change.cumsum().max())
