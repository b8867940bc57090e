"""Fig. 8's burst where nobody lends (section 4.1): AQUA on DRAM by each rule of section 7's
fallback, beside vLLM and vLLM + CFS."""

from __future__ import annotations

import pandas as pd

from plots.aqua import SYSTEMS, paged_gb
from plots.aqua.bursts import phases, summed_up
from plots.figure import Points, Words, text
from plots.runs import overrides

BASELINES = {"fcfs": "always", "cfs_dram": "never", "cfs_dram_gathered": "never"}
RULE = "fcfs_when_in_dram"
RULES = {
    "any": "while any tensor is in DRAM",
    "all": "while all tensors are in DRAM",
    "never": "never",
}
HEAD = ("system", "first come first served", "peak TTFT (s)", "over vLLM's FCFS", "TPOT (s)")


def bursts(points: Points) -> pd.DataFrame:
    """A row for each run: AQUA's with its rule, and those of Fig. 8's baselines, whose requests are
    the same."""
    rows = []
    for point in points:
        words = overrides(point)
        alone = point.experiment == "aqua_alone"
        system = "aqua_alone" if alone else words["system"]
        if alone or system in BASELINES:
            named = {"row": "run", "system": system, RULE: words.get(RULE), "seed": point.seed}
            more = {"mechanism": paged_gb(point, system), "config_hash": point.config_hash()}
            rows.append(named | summed_up(phases(point)) | more)
    return pd.DataFrame(rows)


@text("aqua_table_alone", bursts, ("aqua_alone", "aqua_fig08"), head=HEAD)
def table_alone(rows: pd.DataFrame) -> tuple[Words, str]:
    """Section 4.1's corner case: peak TTFT, and TPOT in Fig. 8's burst, where all models are
    consumers."""
    by_seed = rows.set_index("seed")
    fcfs = by_seed[by_seed.system == "fcfs"].peak_ttft_s
    cells = []
    for system, served in BASELINES.items():
        cells.append(
            [SYSTEMS[system].label, served, *told(by_seed[by_seed.system == system], fcfs)]
        )
    for rule, served in RULES.items():
        cells.append(
            [SYSTEMS["aqua_alone"].label, served, *told(by_seed[by_seed[RULE] == rule], fcfs)]
        )
    return cells, (
        "Fig. 8's burst on Llama-3.1-70B, two H100; mean and range of "
        f"{rows.seed.nunique()} seeds, TPOT in the burst. AQUA gathers its copies. Where nobody "
        "lends, every tensor is in DRAM."
    )


def told(of: pd.DataFrame, fcfs: pd.Series) -> list[str]:
    """A system's peaks, their ratio to FCFS's of the same seed, and its TPOT, in words."""
    ranges = [
        f"{each.mean():.3g} ({each.min():.2g} to {each.max():.2g})"
        for each in (of.peak_ttft_s, of.peak_ttft_s / fcfs)
    ]
    return [*ranges, f"{of.burst_tpot_s.mean():.3f}"]
