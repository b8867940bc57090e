"""Goodput in each setup of Figs. 11 and 12: models up to which 90 % are on time, and ratios of it.

What the paper sums up as "1.5-9x more goodput compared to existing solutions", without the setup
or the system behind either end. In the CSV alone: the same by share of time, and for ServerlessLLM
at other rates of loading.

And which factor decides between Aegaeon and ServerlessLLM: the models that each serves, one factor
changed at a time, under the SLO of section 7.1 and under the stricter ones of Fig. 13. That table
has the ends of curves alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.capacity_search import Search
from plots.aegaeon.attainment import (
    AT_01,
    AT_05,
    BASELINES,
    CLAIMED,
    DRAWS,
    MODELS,
    SYSTEMS,
    aegaeons,
    all_setups,
    end_of,
    judged,
    searches,
)
from plots.figure import Panels, Points, Words, picture, text
from plots.runs import table as of_runs
from plots.style import PALETTE

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


def by_setup(points: Points) -> pd.DataFrame:
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
    "aegaeon_table_goodput", by_setup, tuple(SEARCHES), searches=SEARCHES,
    head=["of each model", *(SYSTEMS[system].label for system in COLUMNS)],
    title="Models with 90 % of tokens on time (Aegaeon's over the system's)", quick=(True, CLAIMED),
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
    title="Groups of prefills (section 4.2), 0.1 requests/s a model", quick="rows",
)  # fmt: skip
def settings(rows: pd.DataFrame) -> tuple[Words, str]:
    cells = [
        [f"{models}", f"{size}", *(f"{of.token.agg(each):.2%}" for each in ("mean", "min", "max")),
         f"{of.mechanism.mean():,.0f}"]
        for (models, size), of in rows.groupby(["num_models", "max_group_size"])
    ]  # fmt: skip
    return cells, "Mean and range of the inputs; switches: of models on all GPUs, mean of a run."


EXPERIMENTS = (
    "aegaeon_fig11a", "aegaeon_factors", "aegaeon_settings", "aegaeon_fig13", BASELINES,
    "aegaeon_settings_strict",
)  # fmt: skip
BY_4 = Search(MODELS, tuple(n for n in range(16, 164, 4) if n != 40), DRAWS)
SEARCHED = {"aegaeon_fig11a": AT_01, "aegaeon_fig13": AT_01} | dict.fromkeys(
    ("aegaeon_factors", "aegaeon_settings", "aegaeon_settings_strict"), BY_4
)

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "ServerlessLLM, from the artifact's simulation to ours": {
        "serverlessllm_artifact": "the artifact's: 16 GB/s, drops after 15 s",
        "serverlessllm_artifact_undropped": "+ no request is dropped",
        "serverlessllm_artifact_undropped_50": "+ loads at 50 GB/s",
        "serverlessllm_artifact_shortest": "+ joins the shortest queue",
        "serverlessllm_in_turn": "+ one queue for all GPUs, in order",
        "serverlessllm": "+ joins a running instance: ours",
    },
    "ours with one factor changed": {
        "serverlessllm_32": "loads at 32 GB/s",
        "serverlessllm_16": "loads at 16 GB/s",
        "serverlessllm_eight": "8 requests an instance (4)",
        "serverlessllm_pairs": "2 requests an instance",
        "serverlessllm_alone": "1 request an instance (its default)",
        "serverlessllm_keep_5": "idle instances stay for 5 s (0 s)",
        "serverlessllm_starts_1": "an engine starts in 1 s (0 s)",
        "serverlessllm_starts_4": "an engine starts in 4 s",
        "serverlessllm_starts": "an engine starts in 22 s (Fig. 7)",
        "serverlessllm_alone_starts_4": "1 request an instance, an engine starts in 4 s",
        "serverlessllm_plus": "shortest job first (ServerlessLLM+)",
    },
    "the artifact's ServerlessLLM+": {
        "serverlessllm_plus_artifact": "as simulated",
        "serverlessllm_plus_artifact_whole": "a job is prefill and decoding",
        "serverlessllm_plus_artifact_kept": "the running batch stays",
    },
    "Aegaeon": {
        "aegaeon": "paper: 6 GPUs prefill, Q_MAX 4 s",
        "aegaeon_unified": "every GPU does both phases (Fig. 6 (a))",
        "aegaeon_prefill_3": "3 GPUs prefill",
        "aegaeon_quota_1": "Q_MAX 1 s",
        "aegaeon_prefill_3_quota_1": "3 GPUs prefill, Q_MAX 1 s",
        "aegaeon_group_1": "MAX_GPSIZE 1 (8)",
        "aegaeon_no_prefetch": "no prefetching (section 5.2)",
        "aegaeon_t2": "T2: KV moves in turn (section 5.3)",
        "aegaeon_t0": "T0: no optimisation of section 5",
    },
}
COLOURS = dict(zip(SECTIONS, (PALETTE[1], PALETTE[5], PALETTE[2], PALETTE[0]), strict=True))
QUICK = {
    "experiment/aegaeon/system@_global_": (
        "aegaeon", "aegaeon_unified", "serverlessllm", "serverlessllm_alone",
        "serverlessllm_artifact",
    )
}  # fmt: skip
PANELS = {1.0: "SLO of section 7.1", 0.5: "0.5 x SLO", 0.3: "0.3 x SLO", 0.2: "0.2 x SLO"}


def by_factor(points: Points) -> pd.DataFrame:
    return ends(judged(points, of_runs(points)))


def ends(runs: pd.DataFrame) -> pd.DataFrame:
    """`goodput`, in models, by system, SLO, metric and seed; nan where the curve is below 90 % from
    its first point on, or nowhere. `over`: Aegaeon's under the same SLO over it. `mechanism`: the
    switches of all the curve's runs."""
    rows = []
    for (system, factor, seed), curve in runs.groupby(["system", "factor", "seed"]):
        for metric in ("token", "time"):
            switches = curve.mechanism.sum(min_count=1)
            rows.append((system, factor, metric, seed, end_of(curve, metric)[0], switches))
    names = ["system", "factor", "metric", "seed", "goodput", "mechanism"]
    made = pd.DataFrame(rows, columns=names)
    return made.assign(over=aegaeons(made, ["factor", "metric", "seed"]) / made.goodput)


@picture(
    "aegaeon_factors", by_factor, EXPERIMENTS, shape=(1, 4), size=(11, 6.6),
    searches=SEARCHED, quick=(False, QUICK),
)  # fmt: skip
def factors(axes: Panels, rows: pd.DataFrame) -> str:
    for panel, (factor, title) in zip(axes, PANELS.items(), strict=True):
        _dots(panel, rows, factor, named=panel is axes[0])
        panel.set_title(title)
    return (
        "Models with 90 % on time at 0.1 requests/s each, 16 GPUs: by tokens (filled) and by share "
        f"of time (the artifact's metric; hollow); mean and range of five inputs. {MORE}, {FEWER}: "
        "on time at every number of models tried, at none, by the ends under another SLO; "
        f"{UNTOLD}: under no SLO, so which is not known. Dashed: Aegaeon as in the paper, and "
        "half of it. ServerlessLLM knows no SLO: its runs are judged by each."
    )


MORE, FEWER, UNTOLD = "> tried", "< tried", "no end found"
# Of the words, where a filled dot stands beside them.
SIDES = {MORE: "right", FEWER: "left", UNTOLD: "left"}


def no_dot(rows: pd.DataFrame, system: str, factor: float, metric: str) -> str:
    """Why a panel lacks a dot. A curve without an end is on time at every number of models tried if
    it has an end under a stricter SLO, at none if it has one under a looser; else the table does
    not tell."""
    of = rows[(rows.system == system) & (rows.metric == metric)]
    if factor not in set(of.factor):
        return "not run"
    found = of[of.goodput.notna()].factor
    return MORE if (found < factor).any() else FEWER if (found > factor).any() else UNTOLD


def _dots(axes: Axes, rows: pd.DataFrame, factor: float, *, named: bool) -> None:
    lines = [(title, system) for title, of in SECTIONS.items() for system in ("", *of)]
    shown = rows[rows.factor == factor]
    for y, (title, system) in enumerate(lines):
        mean, missing = 0.0, {}
        for metric, face, lower in (("token", COLOURS[title], 0.0), ("time", "white", 0.25)):
            found = shown[(shown.system == system) & (shown.metric == metric)].goodput.dropna()
            if len(found):
                mean = found.mean()
                spread = [[mean - found.min()], [found.max() - mean]]
                look = {"fmt": "o", "ms": 4, "lw": 1, "color": COLOURS[title], "mfc": face}
                axes.errorbar(mean, y + lower, xerr=spread, **look)
            elif system:
                missing[metric] = no_dot(rows, system, factor, metric)
        if missing:
            whys = [*dict.fromkeys(missing.values())]
            told = ("" if "token" in missing else "hollow ") + ", hollow ".join(whys)
            side = SIDES[whys[0]] if mean else "left"
            axes.annotate(
                told, (mean, y + 0.15), xytext=(-6 if side == "right" else 6, 0), ha=side,
                textcoords="offset points", va="center", fontsize=7, color="0.35",
            )  # fmt: skip
    paper = shown[(shown.system == "aegaeon") & (shown.metric == "token")].goodput.mean()
    for at in (paper, paper / 2):
        axes.axvline(at, color=PALETTE[0], lw=0.8, ls="--")
    labels = [SECTIONS[title].get(system, title) if named else "" for title, system in lines]
    axes.set_yticks(range(len(lines)), labels)
    for label, (_, system) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("normal" if system else "bold")
    axes.set(xlim=(0, None), ylim=(len(lines) - 0.4, -0.6), xlabel="models")
