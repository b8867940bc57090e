"""What Figs. 17 and 18 depend on: what holds the GPUs, ServerlessLLM's TTL, SSDs and hosts, and how
long the window is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, product
from typing import Any

import pandas as pd

from plots.blitzscale.latency import ROLES
from plots.blitzscale.runs import MEASURES, SYSTEMS, Run, from_ssd, held_s, runs, saved, table_of
from plots.figure import Points, Words, text

DIVIDED = ("blitzscale", "no_prescaling", "distserve_half", "distserve_half_6_2")


def _held(run: Run) -> Iterator[dict[str, Any]]:
    names = ("mean TTFT", "mean TBT", "P95 TBT", "GPU time")
    slots = run.slots()
    end_s = float(slots.end_s.max())
    yield from run.rows({name: MEASURES[name](run) for name in names})
    for role in ROLES:
        yield run.row(f"mean GPUs, {role}", held_s(slots[slots.role == role]) / end_s)


@text(
    "blitzscale_table_gpu_time", table_of(_held, DIVIDED), ("blitzscale_gpu_time",),
    head=["system", *ROLES, "mean TTFT (s)", "mean TBT (s)", "P95 TBT (s)"],
)  # fmt: skip
def gpu_time(rows: pd.DataFrame) -> tuple[Words, str]:
    """What the GPUs of Fig. 18 are held for (mean GPUs of 32, by role), and what pre-scaling
    (section 5.4) and the way in which DistServe's half is divided change. AzureConv, 24B."""
    means = rows.pivot_table(index="system", columns="quantity", values="value")
    cells = []
    for system in DIVIDED:
        each = means.loc[system]
        held = [f"{each[f'mean GPUs, {role}']:.1f}" for role in ROLES]
        times = [f"{each[name]:.3f}" for name in ("mean TTFT", "mean TBT", "P95 TBT")]
        cells.append([SYSTEMS[system].label, *held, *times])
    return cells, (
        "AzureConv, Mistral-24B, cluster A; means of seeds. Prefill, decode, loading: "
        "mean GPUs of 32."
    )


CHANGES = {
    "blitzscale_sensitivity_base": "as in Fig. 17",
    "blitzscale_sensitivity_ssd": "SSD of 2 Gbps",
    "blitzscale_sensitivity_hosts": "hosts of 4 GPUs",
    "blitzscale_sensitivity_spread": "spares on the emptiest host",
}
CHANGED = ("blitzscale", "serverlessllm", "serverlessllm_30s")
QUANTITIES = ["mean TTFT", "P99 TTFT", "share of loads from SSD"]


def _changed(run: Run) -> list[dict[str, Any]]:
    values = {name: MEASURES[name](run) for name in QUANTITIES[:2]}
    values[QUANTITIES[2]] = from_ssd(run)
    experiment = run.point.experiment
    return run.rows(values, change=CHANGES[experiment], experiment=experiment)


@text(
    "blitzscale_table_sensitivity", table_of(_changed, CHANGED), tuple(CHANGES),
    head=["", "system", "mean TTFT (s)", "P99 TTFT (s)", "loads from SSD", "saved by BlitzScale"],
)  # fmt: skip
def sensitivity(rows: pd.DataFrame) -> tuple[Words, str]:
    """How much comparisons with ServerlessLLM depend on its TTL, SSDs and hosts. AzureCode, 8B,
    cluster B; what is changed against Fig. 17, one thing at a time. The paper's code has logical
    hosts of four GPUs; a host is where a cached copy can be read. With spares on the emptiest host
    ServerlessLLM with a TTL of 30 s seldom reads an SSD."""
    means = rows.pivot_table(index=["change", "system"], columns="quantity", values="value")
    ttfts = rows[rows.quantity == "mean TTFT"]
    pivot = ttfts.pivot_table(index=["change", "system"], columns="seed", values="value")
    by_seed = dict(zip(pivot.index, pivot.to_numpy(float), strict=True))
    cells = []
    for change, system in product(dict.fromkeys(CHANGES.values()), CHANGED):
        if (change, system) in means.index:
            ttft_s, p99_s, missed = means.loc[[(change, system)]][QUANTITIES].to_numpy()[0]
            ours = by_seed.get((change, "blitzscale"), by_seed["as in Fig. 17", "blitzscale"])
            saved_share = float((1 - ours / by_seed[change, system]).mean())
            less = "" if system == "blitzscale" else f"{saved_share:.0%}"
            label = SYSTEMS[system].label
            cells.append([change, label, f"{ttft_s:.3f}", f"{p99_s:.3f}", f"{missed:.0%}", less])
    return cells, (
        "AzureCode, 8B, cluster B; means of seeds. Saved: of the mean TTFT, seed by seed; with an "
        "SSD of 2 Gbps against BlitzScale as in Fig. 17."
    )


WINDOWS = {"blitzscale_sensitivity_base": "300 s, as Fig. 17", "blitzscale_window": "900 s"}
LATENCIES = ("mean TTFT", "mean TBT")
OF_WINDOW = [*LATENCIES, "mean GPUs", "loads", "share of loads from SSD"]


def by_window(points: Points) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    kept = sorted(runs(points, CHANGED), key=_window)
    for window, group in groupby(kept, _window):
        together = list(group)
        made = [row for run in together for row in _in_window(run)]
        for against in CHANGED[1:]:
            made += saved(together, against, quantities=LATENCIES[:1])
        rows += [row | {"window": window} for row in made]
    return pd.DataFrame(rows)


def _window(run: Run) -> str:
    return WINDOWS[run.point.experiment]


def _in_window(run: Run) -> list[dict[str, Any]]:
    values = {name: MEASURES[name](run) for name in (*LATENCIES, "GPU time")}
    values["mean GPUs"] = values["GPU time"] / float(run.slots().end_s.max())
    values |= {"loads": float(len(run.loads())), "share of loads from SSD": from_ssd(run)}
    return run.rows(values, experiment=run.point.experiment)


@text(
    "blitzscale_table_window", by_window, tuple(WINDOWS),
    head=[
        "window", "system", "loads", "from SSD", "mean TTFT (s)", "mean TBT (s)", "mean GPUs",
        "TTFT saved by BlitzScale",
    ],
)  # fmt: skip
def window(rows: pd.DataFrame) -> tuple[Words, str]:
    """Fig. 17's AzureCode in its window of 300 s, and in one of 900 s, which is longer than
    ServerlessLLM's TTL of 5 minutes: only in the longer one can a host lose a copy that it used in
    the window. The warm-up, the trace and the factor on its rate are the same."""
    means = rows.pivot_table(index=["window", "system"], columns="quantity", values="value")
    of_saved = rows[rows.quantity == "share of mean TTFT saved"]
    pairs = of_saved.groupby(["window", "against"]).value.mean().to_dict()
    cells = []
    for found, system in product(WINDOWS.values(), CHANGED):
        numbers = means.loc[[(found, system)]][OF_WINDOW].to_numpy(float)[0]
        ttft_s, tbt_s, gpus, loads, missed = numbers
        less = "" if system == "blitzscale" else f"{pairs[found, system]:.0%}"
        cells.append([
            found, SYSTEMS[system].label, f"{loads:.1f}", f"{missed:.0%}", f"{ttft_s:.3f}",
            f"{tbt_s:.4f}", f"{gpus:.1f}", less,
        ])  # fmt: skip
    return cells, (
        "AzureCode, 8B, cluster B (16 GPUs); means of seeds, after a warm-up of 300 s. TTFT saved: "
        "seed by seed."
    )
