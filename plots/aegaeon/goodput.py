"""Goodput in each setup of Figs. 11 and 12: models up to which 90 % are on time, and ratios of it.

What the paper sums up as "1.5-9x more goodput compared to existing solutions", without the setup
or the system behind either end. In the CSV alone: the same by share of time, and for ServerlessLLM
at other rates of loading.
"""

from __future__ import annotations

import pandas as pd

from plots.aegaeon.attainment import AT_01, AT_05, SYSTEMS, aegaeons, all_setups, end_of, searches
from plots.figure import Points, Words, text
from plots.runs import table as of_runs

SEARCHES = searches(
    {"aegaeon_fig11a": AT_01, "aegaeon_fig11b": AT_05}
    | {"aegaeon_fig12_rps01": AT_01, "aegaeon_fig12_rps05": AT_05}
)
SETUPS = {  # titles by experiment and lengths
    ("aegaeon_fig11a", ""): "0.1/s",
    ("aegaeon_fig11b", ""): "0.5/s",
    ("aegaeon_fig12_rps01", "ix2"): "0.1/s, inputs x 2",
    ("aegaeon_fig12_rps01", "ox2"): "0.1/s, outputs x 2",
    ("aegaeon_fig12_rps05", "ix2"): "0.5/s, inputs x 2",
    ("aegaeon_fig12_rps05", "ox2"): "0.5/s, outputs x 2",
}
COLUMNS = ("aegaeon", "serverlessllm_artifact", "serverlessllm", "muxserve")


def table(points: Points) -> pd.DataFrame:
    return goodputs(all_setups(points))


def goodputs(runs: pd.DataFrame) -> pd.DataFrame:
    """Goodput by setup, metric, system and seed: `goodput` in models, and `ratio`, Aegaeon's over
    it. Both are nan where the system is below 90 % from the smallest number of models on, or
    nowhere. `at_least`, `ratio_at_least`: the same, with the largest number of models that was
    tried where Aegaeon is nowhere below. `mechanism`: the switches of all the curve's runs."""
    rows = []
    for (experiment, lengths), title in SETUPS.items():
        of_setup = runs[(runs.experiment == experiment) & (runs.lengths.fillna("") == lengths)]
        for (system, seed), found in of_setup.groupby(["system", "seed"]):
            switches = found.mechanism.sum(min_count=1)
            rows += [
                (title, metric, system, seed, *end_of(found, metric), switches)
                for metric in ("token", "time")
            ]
    names = ["setup", "metric", "system", "seed", "goodput", "at_least", "mechanism"]
    made = pd.DataFrame(rows, columns=names)
    keys = ["setup", "metric", "seed"]
    return made.assign(
        ratio=aegaeons(made, keys) / made.goodput,
        ratio_at_least=aegaeons(made, keys, "at_least") / made.goodput,
    )


@text(
    "aegaeon_table_goodput", table, tuple(SEARCHES), searches=SEARCHES,
    head=["of each model", *(SYSTEMS[system].label for system in COLUMNS)],
    title="Models with 90 % of tokens on time (Aegaeon's over the system's)",
)  # fmt: skip
def goodput(rows: pd.DataFrame) -> tuple[Words, str]:
    means = rows[rows.metric == "token"].groupby(["setup", "system"])[["goodput", "ratio"]].mean()
    cells = [
        [title, *(_cell(means, title, system) for system in COLUMNS)] for title in SETUPS.values()
    ]
    return cells, (
        "Means of the inputs. Between the numbers of models tried, a straight line; where a system "
        "refuses the next one, the last that it takes."
    )


def _cell(means: pd.DataFrame, title: str, system: str) -> str:
    goodput, ratio = means.loc[[(title, system)]].to_numpy(float)[0]
    return f"{goodput:.1f}" if system == "aegaeon" else f"{goodput:.1f} ({ratio:.2f} x)"


@text(
    "aegaeon_table_settings", of_runs, ("aegaeon_table_settings",),
    head=["models", "MAX_GPSIZE", "tokens on time", "lowest", "highest", "switches"],
    title="Groups of prefills (section 4.2), 0.1 requests/s a model",
)  # fmt: skip
def settings(rows: pd.DataFrame) -> tuple[Words, str]:
    cells = [
        [f"{models}", f"{size}", *(f"{of.token.agg(each):.2%}" for each in ("mean", "min", "max")),
         f"{of.mechanism.mean():,.0f}"]
        for (models, size), of in rows.groupby(["num_models", "max_group_size"])
    ]  # fmt: skip
    return cells, "Mean and range of the inputs; switches: of models on all GPUs, mean of a run."
