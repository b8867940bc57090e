"""What Aegaeon's figures share: how each system looks, and panels of attainment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.claims.expressions import GOOD, Beyond, crossing
from plots.panels import Look, lines
from plots.style import PALETTE

DOTS, DASHES = (0, (1, 1)), (0, (4, 2))

# _artifact: as Aegaeon's authors simulated it.
SYSTEMS = {
    "aegaeon": Look("Aegaeon", PALETTE[0], "o"),
    "aegaeon_artifact": Look("Aegaeon (artifact)", PALETTE[0], "o", ":"),
    "serverlessllm": Look("ServerlessLLM", PALETTE[1], "s"),
    "serverlessllm_plus": Look("ServerlessLLM+", PALETTE[2], "^"),
    "muxserve": Look("MuxServe", PALETTE[3], "D"),
    "serverlessllm_artifact": Look("ServerlessLLM (artifact)", PALETTE[1], "s", ":"),
    "serverlessllm_plus_artifact": Look("ServerlessLLM+ (artifact)", PALETTE[2], "^", ":"),
    "muxserve_artifact": Look("MuxServe (artifact)", PALETTE[3], "D", ":"),
}
# ServerlessLLM by how fast it loads checkpoints, in experiments called …_bandwidth. In the others
# ours loads at the links' 50 GB/s, the artifact's at 16.
LOADING = {
    "serverlessllm_16": Look("ServerlessLLM, 16 GB/s", PALETTE[5]),
    "serverlessllm_32": Look("ServerlessLLM, 32 GB/s", PALETTE[5], "", "--"),
    "serverlessllm_artifact_32": Look("ServerlessLLM (artifact), 32 GB/s", PALETTE[6], "", DOTS),
    "serverlessllm_artifact_50": Look("ServerlessLLM (artifact), 50 GB/s", PALETTE[6], "", DASHES),
}


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows`, the experiments on rates of loading, and on inputs beyond the published ones, counted
    to those that they stand beside."""
    return rows.assign(
        experiment=rows.experiment.str.replace("_(bandwidth|beyond)$", "", regex=True)
    )


def attainment(
    axes: Axes, rows: pd.DataFrame, title: str, x: str, label: str,
    looks: Mapping[str, Look] | Mapping[float, Look] = SYSTEMS, *, by: str = "system",
) -> None:  # fmt: skip
    """Tokens in time over `x`. Dashed is 90 %; thin vertical lines are where curves fall below."""
    axes.axhline(100 * GOOD, color="0.4", lw=0.8, ls="--")
    lines(axes, rows, x, "token", looks, by=by, factor=100)
    for name, look in looks.items():
        end = crossing(rows[rows[by] == name], x, "token")
        if np.isfinite(end) and not isinstance(end, Beyond):
            axes.axvline(end, color=look.colour, lw=0.7, ls=look.line)
    axes.set(title=title, xlabel=label, ylabel="SLO attainment (%)", ylim=(0, 104))
