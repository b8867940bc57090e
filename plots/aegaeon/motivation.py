"""Why to pool GPUs, and at which grain: the workload (Fig. 1), how many models are active at a time
(Fig. 4, Theorem 3.1), and token-level schedules on two GPUs (Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from harness.experiments.points import Point
from harness.schedule import Schedule
from plots.aegaeon.attainment import attainment
from plots.figure import Panels, Points, picture
from plots.panels import Look, lanes, spans
from plots.runs import events
from plots.runs import table as of_runs
from plots.style import PALETTE

COLD = {"models_share": 0.941, "requests_share": 0.0135}  # §2.2: 94.1 % of models get 1.35 %
BIN_S = 10.0


def skew_and_bursts(points: Points) -> pd.DataFrame:
    (point,) = points
    schedule = Schedule.load(point.folder / "schedule.parquet")
    popular = pd.Series(schedule.model).value_counts()
    skew = pd.DataFrame(
        {
            "models_share": np.arange(1, len(popular) + 1) / len(popular),
            "requests_share": popular.to_numpy()[::-1].cumsum() / len(schedule),
        }
    )
    of_top = schedule.arrival_s[np.array(schedule.model) == popular.index[0]]
    edges_s = np.arange(0.0, schedule.arrival_s[-1] + BIN_S, BIN_S)
    counts = np.histogram(of_top, edges_s)[0]
    rate = pd.DataFrame({"time_s": edges_s[:-1], "rate_per_s": counts / BIN_S})
    trace = pd.concat([skew.assign(panel="a"), rate.assign(panel="b")])
    cold = pd.DataFrame([{"panel": "a", "inputs": "paper"} | COLD])
    return pd.concat([trace.assign(config_hash=point.config_hash()), cold])


@picture("aegaeon_fig01", skew_and_bursts, ("aegaeon_fig01",), shape=(1, 2), size=(9, 3.4))
def fig01(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 1: concurrent workloads are skewed (a) and bursty (b).

    The paper's production trace is not public. Drawn are its published statistics, and the same
    quantities of a public trace with many models (Chatbot Arena, as rescaled in time for VTC).
    """
    left, right = axes
    cold = rows.inputs == "paper"
    skew, rate = rows[(rows.panel == "a") & ~cold], rows[rows.panel == "b"]
    name, published = f"Chatbot Arena, {len(skew)} models", "published: 94.1 % of models, 1.35 %"
    x, y = "models_share", "requests_share"
    left.plot(100 * skew[x], 100 * skew[y], drawstyle="steps-post", label=name)
    star = {"ms": 12, "color": PALETTE[3], "label": published, "clip_on": False}
    left.plot(100 * rows[cold][x], 100 * rows[cold][y], "*", **star)
    left.set(title="(a) requests to the least used models", xlim=(0, 100), ylim=(0, None))
    left.set(xlabel="models, least used first (%)", ylabel="share of requests (%)")
    left.legend(loc="upper left")
    edges_s = [*rate.time_s, rate.time_s.iloc[-1] + BIN_S]
    mean = rate.rate_per_s.mean()
    right.stairs(rate.rate_per_s, edges_s, fill=True, alpha=0.5, color=PALETTE[0])
    right.axhline(mean, ls="--", color="0.3", lw=1, label=f"its mean, {mean:.2f}/s")
    right.set(title="(b) the most used model of the trace", xlabel="time (s)")
    right.set(xlim=(0, edges_s[-1]), ylim=(0, 1.2 * rate.rate_per_s.max()))
    right.set_ylabel(f"requests/s in {BIN_S:g} s")
    right.legend(loc="upper right")
    return (
        "Curves: lmsys_arena/real_trace.csv, 1,500 requests, times rescaled and lengths cut by "
        "VTC's authors. Star: Aegaeon section 2.2, whose trace is not public."
    )


M, RATE_PER_S, SERVICE_S = 100, 0.037, 16.79  # §3.1
HORIZON_S, STEP_S = 2000.0, 1.0
SEEDS = range(5)
DRAWN_EACH = 5  # of the steps


def expected(models: int, rate_per_s: float, service_s: float) -> float:
    """Equation 1."""
    return float(models * (1 - np.exp(-rate_per_s * service_s)))


def active(seed: int, times_s: np.ndarray) -> np.ndarray:
    """The number of models with a request in service at each of `times_s`, in steady state."""
    rng = np.random.default_rng(seed)
    count = np.zeros(len(times_s), int)
    for _ in range(M):
        span_s = HORIZON_S + SERVICE_S  # whatever came within T before time 0 is in service at 0
        arrivals = np.sort(rng.uniform(-SERVICE_S, HORIZON_S, rng.poisson(RATE_PER_S * span_s)))
        latest = np.searchsorted(arrivals, times_s, side="right") - 1
        came = latest >= 0
        count[came] += times_s[came] - arrivals[latest[came]] < SERVICE_S
    return count


def active_models(points: Points) -> pd.DataFrame:
    times_s = np.arange(0.0, HORIZON_S, STEP_S)
    counts = {seed: active(seed, times_s) for seed in SEEDS}
    drawn = pd.DataFrame({"seed": 0, "time_s": times_s, "active": counts[0]})[::DRAWN_EACH]
    means = pd.DataFrame([(seed, count.mean()) for seed, count in counts.items()])
    means = means.set_axis(["seed", "mean_active"], axis=1)
    means["expected"] = expected(M, RATE_PER_S, SERVICE_S)
    return pd.concat([means, drawn]).assign(inputs="drawn")


@picture("aegaeon_fig04", active_models, size=(6, 3.2))
def fig04(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 4: how many of M models have a request in service, and Theorem 3.1's expectation of it.

    As in the paper, a simulation of the theorem's own premises: Poisson arrivals for each model,
    and every request served for T seconds as it arrives.
    """
    (panel,) = axes
    drawn, of_seeds = rows.dropna(subset=["active"]), rows.dropna(subset=["mean_active"])
    panel.plot(drawn.time_s, drawn.active, lw=0.8, color=PALETTE[0], label="simulated, seed 0")
    mean = of_seeds.expected.iloc[0]
    panel.axhline(mean, color=PALETTE[3], ls="--", label=f"Theorem 3.1: E[m] = {mean:.2f}")
    panel.set(title=f"Active models of M = {M} (λ = {RATE_PER_S}/s, T = {SERVICE_S} s)")
    panel.set(xlabel="time (s)", ylabel="active models", xlim=(0, HORIZON_S), ylim=(0, M))
    panel.legend(loc="upper right", ncols=2)
    means = ", ".join(f"{mean:.2f}" for mean in of_seeds.mean_active)
    return f"SIMULATED premises of the theorem; means of seeds 0 to 4: {means}."


SCHEDULES = {
    "prefill_first": Look("(a) prefill first", PALETTE[0], "s"),
    "decode_first": Look("(b) decoding first", PALETTE[1], "D"),
    "disaggregated": Look("(c) disaggregated", PALETTE[2], "^"),
}
FACTOR, SEED = 8, 0  # of the charts
SHOWN_S = 60.0  # requests arrive for so long


def schedules(points: Points) -> pd.DataFrame:
    """A row per run (`panel` d), and one for each span of the charts."""
    runs = of_runs(points).assign(panel="d")
    shown = runs[(runs.factor == FACTOR) & (runs.seed == SEED)].schedule
    return pd.concat([runs, *(_spans(points[int(str(i))], name) for i, name in shown.items())])


def _spans(point: Point, schedule: str) -> pd.DataFrame:
    found = events(point.folder, "run", "switch")
    shown = found.loc[found.start_s < SHOWN_S]
    columns = ["instance", "kind", "model", "phase", "start_s", "end_s"]
    return shown[columns].assign(
        panel=SCHEDULES[schedule].label[1], schedule=schedule, config_hash=point.config_hash()
    )


@picture("aegaeon_fig06", schedules, ("aegaeon_fig06",), shape=(4, 1), size=(9, 8.6), quick="rows")
def fig06(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 6: token-level schedules on two GPUs, drawn from runs of the three of them (a to c), and
    how each fares under larger bursts (d)."""
    runs, shown = rows[rows.panel == "d"], rows[rows.panel != "d"]
    colours = dict(zip(sorted(shown.model.unique()), PALETTE, strict=False))
    drawn = runs[(runs.factor == FACTOR) & (runs.seed == SEED)].set_index("schedule")
    for panel, (schedule, look) in zip(axes, SCHEDULES.items(), strict=False):
        _gantt(panel, shown[shown.schedule == schedule], colours)
        ttft_s, token = drawn.ttft_mean_s[schedule], drawn.token[schedule]
        panel.set_title(f"{look.label}: mean TTFT {ttft_s:.2f} s, {token:.1%} of tokens in time")
    factors = sorted(runs.factor.unique())
    attainment(axes[3], runs, "factor", SCHEDULES, by="schedule")
    axes[3].set(title="(d) under larger bursts")
    axes[3].set_xlabel("rate during the burst, in multiples of the rate around it")
    axes[3].set_xscale("log", base=2)
    axes[3].set_xticks(factors, [f"{factor:g} x" for factor in factors])
    axes[3].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    patches = [Patch(color=colour, label=model) for model, colour in colours.items()]
    patches.append(Patch(facecolor="white", edgecolor="k", hatch="/////", label="prefill"))
    patches.append(Patch(color="0.55", label="switch"))
    axes[0].figure.legend(handles=patches, loc="outside upper center", ncols=len(patches))
    return (
        "(a) to (c): a burst of 8 times the rate from 20 to 30 s, seed 0; SLO: TTFT 10 s, TBT "
        "100 ms. (d): mean and range of the seeds; vertical: 90 % is met up to here."
    )


def _gantt(axes: Axes, rows: pd.DataFrame, colours: Mapping[str, Any]) -> None:
    """A row per instance: batches by model, prefills hatched, and switches between them."""
    instances = sorted(rows.instance.unique())
    kinds = ["instance", "kind", "model", "phase"]
    for (instance, kind, model, phase), found in rows.groupby(kinds, dropna=False):
        place = instances.index(instance)
        if kind == "switch":
            spans(axes, found, place, 0.4, color="0.55", lw=0)
            continue
        edge, hatch = ("k", "/////") if phase == "prefill" else ("white", None)
        look = {"facecolor": colours[str(model)], "edgecolor": edge, "hatch": hatch}
        spans(axes, found, place, 0.8, lw=0.3, zorder=2, **look)
    lanes(axes, [f"GPU {i}" for i in range(len(instances))])
    axes.set(xlim=(0, SHOWN_S), xlabel="time (s)")
