"""SLO attainment by number of models and by rate (Figs. 11, 12, 13 and 17), and goodput.

In Figs. 11 (a), (c) and 12 one of the inputs is the artifact's file and the others are redrawn from
it. Models that MuxServe puts on one device do not compete for its memory bandwidth; Fig. 11's table
has (c) with them competing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.axes import Axes

from harness.claims.expressions import GOOD, Beyond, crossing
from harness.experiments.capacity_search import Search
from harness.experiments.points import Point
from harness.records.attainment import Attained
from harness.records.slo import Slo
from harness.records.token_log import TokenLog
from plots.figure import Panels, Points, picture
from plots.panels import Look, facets, lines
from plots.runs import beside as beside_base
from plots.runs import table as of_runs
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
EVERY = SYSTEMS | LOADING
OF_SERVERLESSLLM = {
    name: look
    for name, look in EVERY.items()
    if name.startswith("serverlessllm") and "plus" not in name
}

# Of the published files that of 40 models and 0.1 requests/s lasts half as long as the others.
MODELS, RATE = "workload.dataset.parameters.num_models", "workload.dataset.parameters.rate_per_s"
DRAWS = ("seed", "experiment/aegaeon/inputs@_global_")
AT_01 = Search(MODELS, tuple(n for n in range(16, 114, 2) if n != 40), DRAWS)
AT_05 = Search(MODELS, tuple(range(8, 80, 2)), DRAWS)
OF_40 = Search(RATE, tuple(n / 20 for n in range(1, 15)), DRAWS)


def searches(found: Mapping[str, Search]) -> dict[str, Search]:
    """And of the experiments beside them, with ServerlessLLM at other rates of loading."""
    return {**found, **{f"{name}_bandwidth": search for name, search in found.items()}}


OF_FIG11 = searches({"aegaeon_fig11a": AT_01, "aegaeon_fig11b": AT_05, "aegaeon_fig11c": OF_40})
RUNS_OF_FIG11 = (
    *list(OF_FIG11)[:3], "aegaeon_fig11c_beyond", *list(OF_FIG11)[3:], "aegaeon_fig11_contention",
)  # fmt: skip
OF_FIG12 = searches({"aegaeon_fig12_rps01": AT_01, "aegaeon_fig12_rps05": AT_05})
# Of `reproduce`'s quick tier: the systems that claims name.
CLAIMED = {"experiment/aegaeon/system@_global_": tuple(SYSTEMS.keys() - {"aegaeon_artifact"})}
BASELINES = "aegaeon_fig13_baselines"
OF_FIG13 = ("aegaeon_fig11a", "aegaeon_fig13", "aegaeon_fig11a_bandwidth")


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows`, the experiments on rates of loading, and on inputs beyond the published ones, counted
    to those that they stand beside."""
    return rows.assign(
        experiment=rows.experiment.str.replace("_(bandwidth|beyond)$", "", regex=True)
    )


LABELS = {"num_models": "models", "rate_per_s": "requests/s of each model"}


def attainment(
    axes: Axes, rows: pd.DataFrame, x: str = "num_models", looks: Mapping[Any, Look] = SYSTEMS,
    *, by: str = "system",
) -> None:  # fmt: skip
    """Tokens in time over `x`. Dashed is 90 %; thin vertical lines are where curves fall below."""
    axes.axhline(100 * GOOD, color="0.4", lw=0.8, ls="--")
    lines(axes, rows, x, "token", looks, by=by, factor=100)
    for name, look in looks.items():
        end = crossing(rows[rows[by] == name], x, "token")
        if np.isfinite(end) and not isinstance(end, Beyond):
            axes.axvline(end, color=look.colour, lw=0.7, ls=look.line)
    axes.set(xlabel=LABELS.get(x, ""), ylabel="SLO attainment (%)", ylim=(0, 104))


SETUPS = {
    "aegaeon_fig11a": ("(a) 0.1 requests/s a model", "num_models"),
    "aegaeon_fig11b": ("(b) 0.5 requests/s a model", "num_models"),
    "aegaeon_fig11c": ("(c) 40 models", "rate_per_s"),
}


def all_setups(points: Points) -> pd.DataFrame:
    return beside(of_runs(points))


@picture(
    "aegaeon_fig11", all_setups, RUNS_OF_FIG11, searches=OF_FIG11, shape=(2, 3), size=(9, 6.4),
    legend=3, quick=(True, CLAIMED),
)  # fmt: skip
def fig11(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 11: SLO attainment by number of models (a, b) and by rate (c), and its sensitivity:
    below each, ServerlessLLM by the rate at which it loads checkpoints."""
    for i, (experiment, (title, x)) in enumerate(SETUPS.items()):
        shown = rows[rows.experiment == experiment]
        attainment(axes[i], shown, x)
        attainment(axes[i + 3], shown, x, OF_SERVERLESSLLM)
        axes[i].set_title(title)
        axes[i + 3].set_title(f"({'def'[i]}) ServerlessLLM by loading rate")
    for panel in (*axes[1:3], *axes[4:]):
        panel.set_ylabel("")
    return (
        "Tokens in time (section 2.1), mean and range of inputs of 120 s (a) or 60 s; vertical: "
        "90 % is met. MuxServe ends where its optimiser finds no placement; (artifact): as "
        "Aegaeon's authors simulate it, loading at 16 GB/s where ours does at 50, unless said."
    )


LENGTHS = {
    ("aegaeon_fig12_rps01", "ix2"): "(a) 0.1 requests/s, inputs x 2",
    ("aegaeon_fig12_rps01", "ox2"): "(b) 0.1 requests/s, outputs x 2",
    ("aegaeon_fig12_rps05", "ix2"): "(c) 0.5 requests/s, inputs x 2",
    ("aegaeon_fig12_rps05", "ox2"): "(d) 0.5 requests/s, outputs x 2",
}


@picture(
    "aegaeon_fig12", all_setups, tuple(OF_FIG12), searches=OF_FIG12, shape=(2, 2), size=(9, 6.2),
    legend=3, quick=(True, CLAIMED),
)  # fmt: skip
def fig12(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 12: SLO attainment with twice as long inputs (ix2) or outputs (ox2)."""
    for panel, ((experiment, lengths), title) in zip(axes, LENGTHS.items(), strict=True):
        shown = rows[(rows.experiment == experiment) & (rows.lengths == lengths)]
        attainment(panel, shown, looks=EVERY)
        panel.set_title(title)
    return (
        "Token attainment (section 2.1): mean and range of the inputs. Vertical: 90 % is met up to "
        "here. (artifact): as Aegaeon's authors simulated it. Checkpoints load at 50 GB/s in ours "
        "and at 16 GB/s in theirs unless said; lines that say have one input."
    )


STRICT = {0.5: "(a) 0.5 x SLO", 0.3: "(b) 0.3 x SLO", 0.2: "(c) 0.2 x SLO"}
TTFT_S, TBT_S = 10.0, 0.1  # the SLO of §7.1


def strict(points: Points) -> pd.DataFrame:
    """Fig. 13's rows; those of the SLO of section 7.1 are Fig. 11's."""
    rows = beside(judged(points, of_runs(points)))
    return rows[rows.factor.isin(list(STRICT))]


def judged(points: Points, rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` (of `points`) under the SLO of section 7.1 and the stricter ones, `factor` times it.

    Aegaeon is told its SLO; the baselines know none, so their runs are judged anew by each.
    """
    ours = rows.system.str.startswith("aegaeon")
    slo = rows.get("slo", pd.Series(index=rows.index, dtype=object)).fillna("aegaeon")
    share = slo.str.removeprefix("aegaeon").str.removeprefix("_strict_").replace("", "100")
    told = rows[ours].assign(factor=share[ours].astype(float) / 100)
    again = [
        each for i, row in rows[~ours].iterrows() for each in _judged(row, points[int(str(i))])
    ]
    return pd.concat([told, pd.DataFrame(again)], ignore_index=True)


def _judged(row: pd.Series, point: Point) -> Iterator[dict[str, Any]]:
    log = None
    if point.path is not None:
        log = TokenLog.from_table(pq.read_table(point.path / "requests.parquet"))
    for factor in (1.0, *STRICT):
        found = {**row, "factor": factor}
        if log is not None:
            limits = Slo.Config(name="strict", ttft_s=factor * TTFT_S, tbt_s=factor * TBT_S)
            attained = Attained.of(log, Slo(limits))
            found |= {"token": attained.token, "time": attained.time}
        yield found


@picture(
    "aegaeon_fig13", strict, (*OF_FIG13, BASELINES), searches=dict.fromkeys(OF_FIG13, AT_01),
    shape=(1, 3), size=(9, 4.5), legend=3, quick=(True, CLAIMED),
)  # fmt: skip
def fig13(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 13: SLO attainment under 0.5, 0.3 and 0.2 times the SLO."""
    for panel, mine, factor in facets(axes, rows, factor=STRICT):
        attainment(panel, mine, looks=EVERY)
        panel.set_title(STRICT[factor])
    for panel in axes[1:]:
        panel.set_ylabel("")
    return (
        "0.1 requests/s a model. Token attainment (section 2.1): mean and range of the inputs. "
        "Baselines know no SLO: the runs of Fig. 11 (a) and some between, judged by these. "
        "ServerlessLLM loads at 50 GB/s, the artifact's at 16 unless said; lines that say have one "
        "input."
    )


DEPLOYMENTS = {  # experiment: title, x, SLO varied, {limit: name}
    "aegaeon_fig17_a10": (
        "(a) 4 x A10, 6B and 7B, 0.1 requests/s each", "num_models", "tbt_s",
        {0.05: "strict\n(TBT 50 ms)", 0.1: "normal\n(TBT 100 ms)", 0.2: "loose\n(TBT 200 ms)"},
    ),
    "aegaeon_fig17_72b": (
        "(b) 8 x H800, four 72B models, TP 4", "rate_per_s", "ttft_s",
        {5.0: "strict\n(TTFT 5 s)", 10.0: "normal\n(TTFT 10 s)", 20.0: "loose\n(TTFT 20 s)"},
    ),
}  # fmt: skip


@picture("aegaeon_fig17", of_runs, tuple(DEPLOYMENTS), shape=(1, 2), size=(10, 3.4), quick="rows")
def fig17(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 17: Aegaeon on a small node (left) and with models over four GPUs (right)."""
    for panel, mine, experiment in facets(axes, rows, experiment=DEPLOYMENTS):
        title, x, slo, limits = DEPLOYMENTS[experiment]
        looks = {
            limit: Look(name, colour, marker)
            for (limit, name), colour, marker in zip(limits.items(), PALETTE, "vo^", strict=False)
        }
        attainment(panel, mine, x, looks, by=slo)
        panel.set_title(title)
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return (
        "Token attainment (section 2.1): mean and range of the seeds. Vertical: 90 % is met up to "
        "here. TTFT 5 s on the left, TBT 200 ms on the right, as the artifact plots them."
    )


def end_of(curve: pd.DataFrame, metric: str) -> tuple[float, float]:
    """The models up to which 90 % are on time, and of how many this is known. The first is nan
    where the curve is nowhere below that in what was tried; both where it is from its first point
    on."""
    end = crossing(curve, "num_models", metric)
    return (nan if isinstance(end, Beyond) else end), float(end)


def aegaeons(ends: pd.DataFrame, keys: list[str], column: str = "goodput") -> pd.Series:
    """Aegaeon's `column` beside each row: that with the same `keys`."""
    return beside_base(ends, ends[ends.system == "aegaeon"], column, keys)
