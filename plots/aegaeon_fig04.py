"""Fig. 4: how many of M models have a request in service, and Theorem 3.1's expectation of it.

As in the paper, a simulation of the theorem's own premises: Poisson arrivals for each model, and
every request served for T seconds as it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.style import PALETTE, figure

EXPERIMENTS = ()
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


def table(points: Sequence[Point]) -> pd.DataFrame:
    times_s = np.arange(0.0, HORIZON_S, STEP_S)
    counts = {seed: active(seed, times_s) for seed in SEEDS}
    drawn = pd.DataFrame({"seed": 0, "time_s": times_s, "active": counts[0]})[::DRAWN_EACH]
    means = pd.DataFrame(
        {
            "seed": list(counts), "mean_active": [count.mean() for count in counts.values()],
            "expected": expected(M, RATE_PER_S, SERVICE_S),
        }
    )  # fmt: skip
    return pd.concat([means, drawn]).assign(inputs="drawn")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (axes,) = figure(1, 1, width=6, height=3.2)
    drawn, of_seeds = rows.dropna(subset=["active"]), rows.dropna(subset=["mean_active"])
    axes.plot(drawn.time_s, drawn.active, lw=0.8, color=PALETTE[0], label="simulated, seed 0")
    mean = of_seeds.expected.iloc[0]
    axes.axhline(mean, color=PALETTE[3], ls="--", label=f"Theorem 3.1: E[m] = {mean:.2f}")
    axes.set(
        title=f"Active models of M = {M} (λ = {RATE_PER_S}/s, T = {SERVICE_S} s)",
        xlabel="time (s)", ylabel="active models", xlim=(0, HORIZON_S), ylim=(0, M),
    )  # fmt: skip
    axes.legend(loc="upper right", ncols=2)
    means = ", ".join(f"{mean:.2f}" for mean in of_seeds.mean_active)
    return made, f"SIMULATED premises of the theorem; means of seeds 0 to 4: {means}."
