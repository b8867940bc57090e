"""Which factor decides between Aegaeon and ServerlessLLM: the models that each serves, one factor
changed at a time, under the SLO of section 7.1 and under the stricter ones of Fig. 13.

The table has the ends of curves alone: the models up to which 90 % are on time.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.capacity_search import Search
from plots.aegaeon.attainment import AT_01, BASELINES, DRAWS, MODELS, aegaeons, end_of, judged
from plots.figure import Panels, Points, picture
from plots.runs import table as of_runs
from plots.style import PALETTE

EXPERIMENTS = (
    "aegaeon_fig11a", "aegaeon_factors", "aegaeon_settings", "aegaeon_fig13", BASELINES,
    "aegaeon_settings_strict",
)  # fmt: skip
BY_4 = Search(MODELS, tuple(n for n in range(16, 164, 4) if n != 40), DRAWS)
SEARCHES = {"aegaeon_fig11a": AT_01, "aegaeon_fig13": AT_01} | dict.fromkeys(
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
PANELS = {1.0: "SLO of section 7.1", 0.5: "0.5 x SLO", 0.3: "0.3 x SLO", 0.2: "0.2 x SLO"}


def table(points: Points) -> pd.DataFrame:
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
    "aegaeon_factors", table, EXPERIMENTS, shape=(1, 4), size=(11, 6.6),
    searches=SEARCHES, quick=False,
)  # fmt: skip
def factors(axes: Panels, rows: pd.DataFrame) -> str:
    for i, (panel, (factor, title)) in enumerate(zip(axes, PANELS.items(), strict=True)):
        _dots(panel, rows[rows.factor == factor], named=i == 0)
        panel.set_title(title)
    return (
        "Models with 90 % on time at 0.1 requests/s each, 16 GPUs: by tokens (filled) and by share "
        "of time (the artifact's metric; hollow); mean and range of five inputs. No dot: not run, "
        "or no end in what was tried. Dashed: Aegaeon as in the paper, and half of it. "
        "ServerlessLLM knows no SLO: its runs are judged by each."
    )


def _dots(axes: Axes, rows: pd.DataFrame, *, named: bool) -> None:
    lines = [(title, system) for title, of in SECTIONS.items() for system in ("", *of)]
    for y, (title, system) in enumerate(lines):
        for metric, face, lower in (("token", COLOURS[title], 0.0), ("time", "white", 0.25)):
            found = rows[(rows.system == system) & (rows.metric == metric)].goodput.dropna()
            if len(found):
                mean = found.mean()
                spread = [[mean - found.min()], [found.max() - mean]]
                look = {"fmt": "o", "ms": 4, "lw": 1, "color": COLOURS[title], "mfc": face}
                axes.errorbar(mean, y + lower, xerr=spread, **look)
    paper = rows[(rows.system == "aegaeon") & (rows.metric == "token")].goodput.mean()
    for at in (paper, paper / 2):
        axes.axvline(at, color=PALETTE[0], lw=0.8, ls="--")
    labels = [SECTIONS[title].get(system, title) if named else "" for title, system in lines]
    axes.set_yticks(range(len(lines)), labels)
    for label, (_, system) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("normal" if system else "bold")
    axes.set(xlim=(0, None), ylim=(len(lines) - 0.4, -0.6), xlabel="models")
