"""Fig. 13: SLO attainment under 0.5, 0.3 and 0.2 times the SLO.

Aegaeon is told its SLO; the baselines know none, so their runs of Fig. 11 (a) are judged anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from harness.experiments.points import Point
from harness.records.attainment import Attained
from harness.records.slo import Slo
from harness.records.token_log import TokenLog
from plots.aegaeon import END_TO_END, LOADING, beside, curve, frame, publish, table
from plots.aegaeon_fig11 import AT_01
from plots.caption import stamp
from plots.style import figure

EXPERIMENTS = ("aegaeon_fig11a", "aegaeon_fig13", "aegaeon_fig11a_bandwidth")
SEARCHES = {"aegaeon_fig11a": AT_01, "aegaeon_fig13": AT_01, "aegaeon_fig11a_bandwidth": AT_01}
BASELINES = ("aegaeon_fig11a", "aegaeon_fig11a_bandwidth")
PANELS = {0.5: "(a) 0.5 x SLO", 0.3: "(b) 0.3 x SLO", 0.2: "(c) 0.2 x SLO"}
TTFT_S, TBT_S = 10.0, 0.1  # the SLO of §7.1


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    told = [point for point in points if point.experiment == "aegaeon_fig13"]
    aegaeon = table(told)
    aegaeon["factor"] = aegaeon.slo.str.removeprefix("aegaeon_strict_").astype(float) / 100
    untold = [point for point in points if point.experiment in BASELINES]
    baselines = table(untold)
    others = ~baselines.system.isin(["aegaeon", "aegaeon_artifact"])
    judged = [
        _judged(baselines.iloc[i], point, f)
        for i, point in enumerate(untold)
        if others[i]
        for f in PANELS
    ]
    rows = beside(pd.concat([aegaeon, pd.DataFrame(judged)], ignore_index=True))
    made, axes = figure(1, 3, width=9, height=4.5)
    for panel, (factor, title) in zip(axes, PANELS.items(), strict=True):
        of_panel = rows[rows.factor == factor]
        frame(panel, title, "models")
        for system in (*END_TO_END, *LOADING):
            of_system = of_panel[of_panel.system == system]
            curve(panel, of_system, "num_models", "token", system)
    for panel in axes[1:]:
        panel.set_ylabel("")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=3)
    stamp(
        made, points, "0.1 requests/s a model. Token attainment (section 2.1): mean and range of "
        "three inputs. Baselines know no SLO: their runs of Fig. 11 (a), judged by these. "
        "ServerlessLLM loads at 50 GB/s, the artifact's at 16 unless said; lines that say have one "
        "input.",
    )  # fmt: skip
    return publish(made, rows, folder, Path(__file__).stem)


def _judged(row: pd.Series, point: Point, factor: float) -> dict[str, object]:
    found = dict(row) | {"factor": factor}
    if point.path is not None:
        log = TokenLog.from_table(pq.read_table(point.path / "requests.parquet"))
        limits = Slo.Config(name="strict", ttft_s=factor * TTFT_S, tbt_s=factor * TBT_S)
        attained = Attained.of(log, Slo(limits))
        found |= {"token": attained.token, "time": attained.time}
    return found
