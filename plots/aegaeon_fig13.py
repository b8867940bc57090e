"""Fig. 13: SLO attainment under 0.5, 0.3 and 0.2 times the SLO.

Aegaeon is told its SLO; the baselines know none, so their runs of Fig. 11 (a) are judged anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from harness.experiments.points import Point
from harness.records.attainment import Attained
from harness.records.slo import Slo
from harness.records.token_log import TokenLog
from plots.aegaeon import LOADING, SYSTEMS, attainment, beside
from plots.aegaeon_fig11 import AT_01
from plots.panels import legend_above
from plots.runs import table as of_runs
from plots.style import figure

EXPERIMENTS = ("aegaeon_fig11a", "aegaeon_fig13", "aegaeon_fig11a_bandwidth")
SEARCHES = dict.fromkeys(EXPERIMENTS, AT_01)
PANELS = {0.5: "(a) 0.5 x SLO", 0.3: "(b) 0.3 x SLO", 0.2: "(c) 0.2 x SLO"}
TTFT_S, TBT_S = 10.0, 0.1  # the SLO of §7.1


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = of_runs(points)
    told = rows[rows.experiment == "aegaeon_fig13"]
    factors = told.slo.str.removeprefix("aegaeon_strict_").astype(float) / 100
    untold = rows[~rows.system.str.startswith("aegaeon")]
    judged = [each for i, row in untold.iterrows() for each in _judged(row, points[int(str(i))])]
    return beside(pd.concat([told.assign(factor=factors), pd.DataFrame(judged)], ignore_index=True))


def _judged(row: pd.Series, point: Point) -> Iterator[dict[str, Any]]:
    log = None
    if point.path is not None:
        log = TokenLog.from_table(pq.read_table(point.path / "requests.parquet"))
    for factor in PANELS:
        found = {**row, "factor": factor}
        if log is not None:
            limits = Slo.Config(name="strict", ttft_s=factor * TTFT_S, tbt_s=factor * TBT_S)
            attained = Attained.of(log, Slo(limits))
            found |= {"token": attained.token, "time": attained.time}
        yield found


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 3, width=9, height=4.5)
    for panel, (factor, title) in zip(axes, PANELS.items(), strict=True):
        shown = rows[rows.factor == factor]
        attainment(panel, shown, title, "num_models", "models", SYSTEMS | LOADING)
    for panel in axes[1:]:
        panel.set_ylabel("")
    legend_above(made, axes, 3)
    return made, (
        "0.1 requests/s a model. Token attainment (section 2.1): mean and range of the inputs. "
        "Baselines know no SLO: their runs of Fig. 11 (a), judged by these. ServerlessLLM loads "
        "at 50 GB/s, the artifact's at 16 unless said; lines that say have one input."
    )
