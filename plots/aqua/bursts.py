"""Latencies in a burst, requests in order of arrival (Figs. 1, 8 and 13), the swap space that it
takes (section 9.4), and the scheduler that shares a full GPU (Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aqua import SYSTEMS, most_paged_bytes, paged_gb, requests
from plots.figure import Panels, PaperFigure, Points, picture
from plots.panels import Look, bars, curves
from plots.runs import config, overrides
from plots.style import PALETTE, log_scale
from systems.aqua.prompt import Limits, Prompt
from systems.aqua.service_order import ServiceOrder
from systems.aqua.turn import Turn

LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "rct_s": "request completion time"}
SHOWN_SEED = 0


def table(points: Points, group: str = "system") -> pd.DataFrame:
    """A row for each run, and one for each request of the seed that is drawn. `group`: of
    experiment/aqua, whose options are the systems."""
    runs, shown = [], []
    for point in points:
        system, rows = overrides(point)[group], phases(point)
        named: dict[str, Any] = {"system": system, "seed": point.seed}
        more = {"row": "run", "mechanism": paged_gb(point, system)}
        runs.append(named | summed_up(rows) | more)
        if point.seed == SHOWN_SEED:
            rows = rows[["order", "phase", "prompt_tokens", "output_tokens", *LATENCIES]]
            shown.append(rows.assign(row="request", **named))
    return pd.concat([pd.DataFrame(runs), *shown], ignore_index=True)


def phases(point: Point) -> pd.DataFrame:
    """The run's requests, each before, in or after the burst."""
    return phased(requests(point), config(point.folder)["workload"]["arrivals"]["burst"])


def phased(rows: pd.DataFrame, burst: Mapping[str, float]) -> pd.DataFrame:
    until = rows.arrival_s - burst["start_s"]
    inside = np.where(until < burst["duration_s"], "burst", "after")
    return rows.assign(phase=np.where(until < 0, "before", inside))


def summed_up(run: pd.DataFrame) -> dict[str, float]:
    """The numbers that are claimed: peaks, means and medians by phase."""
    before, burst, after = (run[run.phase == phase] for phase in ("before", "burst", "after"))
    # High, by our reading: above 1.25 times the median of those before the burst.
    high = run[run.tpot_s > 1.25 * before.tpot_s.median()].order
    return {
        "num_burst": len(burst), "num_failed": int((run.status != "completed").sum()),
        "peak_ttft_s": run.ttft_s.max(), "mean_ttft_s": run.ttft_s.mean(),
        "before_ttft_s": before.ttft_s.median(), "before_mean_ttft_s": before.ttft_s.mean(),
        "burst_ttft_s": burst.ttft_s.mean(), "after_ttft_s": after.ttft_s.mean(),
        "peak_tpot_s": run.tpot_s.max(), "mean_tpot_s": run.tpot_s.mean(),
        "burst_tpot_s": burst.tpot_s.mean(), "mean_rct_s": run.rct_s.mean(),
        "burst_rct_s": burst.rct_s.mean(), "high_from": high.min(), "high_until": high.max(),
    }  # fmt: skip


def burst(
    name: str, columns: Sequence[str], note: str, runs: str = "", group: str = "system"
) -> PaperFigure:
    """A figure with a panel for each of `columns`. `runs`: an experiment that is not called like
    the figure."""
    rows_of, size = partial(table, group=group), (9, 2.6 * len(columns))

    @picture(
        name, rows_of, (runs or name,), shape=(len(columns), 1), size=size, legend=4, quick="rows",
    )  # fmt: skip
    def described(axes: Panels, rows: pd.DataFrame) -> str:
        shown = rows[rows.row == "request"]
        inside = shown[shown.phase == "burst"].order
        for panel, letter, column in zip(axes, "abc", columns, strict=False):
            curves(panel, shown.dropna(subset=[column]), "order", column, SYSTEMS)
            panel.axvspan(inside.min() - 0.5, inside.max() + 0.5, color="0.92", zorder=0, lw=0)
            panel.set(title=f"({letter}) {LATENCIES[column]}", ylabel="seconds")
            panel.set_xlim(0, shown.order.max() + 1)
            log_scale(panel, "y")
        axes[-1].set_xlabel("request, in order of arrival")
        peaks = rows[rows.row == "run"].groupby("system").peak_ttft_s
        by_seed = [
            f"{SYSTEMS[name].label} {of.min():.2g} to {of.max():.2g}, mean {of.mean():.2g}"
            for name, of in ((name, peaks.get_group(name)) for name in ("fcfs", "aqua"))
        ]
        return (
            f"{note} Seed {SHOWN_SEED}; where curves coincide, later ones are narrower. Grey: the "
            "burst (as many are redirected after it). Peak TTFT (s) over seeds: "
            f"{'; '.join(by_seed)}."
        )

    return described


FIG01 = burst(  # on one A100 (section 1)
    "aqua_fig01",
    ("ttft_s", "rct_s"),
    "Yi-34B-200K on an A100 (none is named), ShareGPT; twice a rate with a steady queue, which "
    "misses the SLA.",
)
# The same from live runs: FCFS, CFS on DRAM and AQUA on one schedule whose rate doubles, on paced
# workers of this machine.
LIVE = "Random-weight model, BurstGPT's lengths; twice the rate for 20 s."
FIG01_LIVE = burst("aqua_fig01_live", tuple(LATENCIES), LIVE, "aqua_live_burst", "live")
FIG08 = burst(  # on Llama-3.1-70B over two H100 (section 9.3)
    "aqua_fig08",
    ("ttft_s", "tpot_s"),
    "Llama-3.1-70B, TP 2, ShareGPT, twice the stable rate; an idle Llama-3.1-8B lends.",
)
FIG13 = burst(  # a burst of three times the rate, arXiv (section 9.4)
    "aqua_fig13",
    ("ttft_s", "tpot_s"),
    "Yi-34B-200K, arXiv scaled to 7,000 tokens; three times a rate with a steady queue (no rate "
    "meets the SLA).",
)


PUBLISHED_GB = {2: 6, 3: 15, 5: 40}
LOOKS = {
    "published": Look("published", "0.7"),
    "ours": Look("ours, mean and range of seeds", PALETTE[2]),
}


def swap_space(points: Points) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "series": "ours", "factor": overrides(point)["factor"], "seed": point.seed,
            "swap_gb": most_paged_bytes(point) / 1e9, "mechanism": paged_gb(point, "aqua"),
        }
        for point in points
    )  # fmt: skip


@picture("aqua_table_swap", swap_space, ("aqua_swap",), size=(6.5, 3.4), legend=2, quick="rows")
def swap(axes: Panels, rows: pd.DataFrame) -> str:
    """The swap space that Yi-34B needs in bursts of 2, 3 and 5 times the stable rate (section 9.4):
    the most that was paged out at once, from the run's copies."""
    published = pd.DataFrame({"factor": PUBLISHED_GB.keys(), "swap_gb": PUBLISHED_GB.values()})
    both = pd.concat([rows, published.assign(series="published")])
    bars(axes[0], both, "factor", "swap_gb", LOOKS, by="series")
    axes[0].set(ylabel="GB", title="swap space of Yi-34B", xlabel="rate in the burst over before")
    return (
        "arXiv scaled to a median of 7,000 tokens; most paged at once. Published: from the stable "
        "rate. Ours: from a rate with a steady queue, since none meets the SLA."
    )


TITLES = {"fcfs": "FCFS", "aqua": "AQUA"}
ARRIVALS = {"A": 0, "B": 0, "C": 4, "D": 4, "E": 8}  # iterations; "C, D arrive at the same time"
PROMPT, OUTPUT, SLICE = 64, 24, 4  # tokens, and k
LIMITS = Limits(
    batch_tokens=64, slice_iterations=SLICE, num_blocks=3 * 6, block_tokens=16, max_prompts=16
)


def schedule(system: str) -> pd.DataFrame:
    """A row per prompt and iteration in which it got tokens."""
    turn, rows = Turn(LIMITS, artifact=False), []
    computed, generated, resident = dict.fromkeys(ARRIVALS, 0), dict.fromkeys(ARRIVALS, 0), set()
    for iteration in range(1000):
        live = [n for n, at in ARRIVALS.items() if at <= iteration and generated[n] < OUTPUT]
        if not live and iteration > max(ARRIVALS.values()):
            break
        turn.arrived = turn.arrived or iteration in ARRIVALS.values()
        prompts = [
            Prompt(
                name, list(ARRIVALS).index(name), PROMPT + generated[name], computed[name],
                generated[name], OUTPUT - generated[name], resident=name in resident,
            )
            for name in live
        ]  # fmt: skip
        order = ServiceOrder(LIMITS, prompts)
        if turn.due(order):
            resident = set(turn.choose(order, fcfs=system == "fcfs").members)
        batch = turn.batch(order.prompts)
        done = prefilled = False
        for name, tokens in batch:
            assert isinstance(name, str), "of the prompts above"
            was = generated[name]
            computed[name] += tokens
            if computed[name] == PROMPT + generated[name]:
                generated[name] += 1
                prefilled |= was == 0
            done |= generated[name] == OUTPUT
            rows.append({"prompt": name, "iteration": iteration, "prefill": was == 0})
        turn.ran(1, completed=done, prefilled=prefilled)
    return pd.DataFrame(rows).assign(row="iteration", system=system)


def schedules(points: Points) -> pd.DataFrame:
    """The schedule of each system, with its first iteration of D and its last of A."""
    every = pd.concat([schedule(system) for system in TITLES])
    starts = every[every.prompt == "D"].groupby("system").iteration.min().rename("d_starts")
    ends = every[every.prompt == "A"].groupby("system").iteration.max().rename("a_ends")
    bounds = pd.concat([starts, ends], axis=1).reset_index().assign(row="run")
    return pd.concat([every, bounds]).assign(seed=0, inputs="ours")


@picture("aqua_fig06", schedules, shape=(1, 2), size=(9, 2.9))
def fig06(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 6: who has the GPU when three prompts of five fit, FCFS and AQUA's fair slices: the pure
    scheduler, iteration by iteration; no device and no copies."""
    for panel, (system, title) in zip(axes, TITLES.items(), strict=True):
        for k, (name, arrival) in enumerate(ARRIVALS.items()):
            of = rows[(rows.system == system) & (rows.prompt == name)]
            colours = ["0.3" if prefill else PALETTE[k] for prefill in of.prefill]
            boxes = [(at, 1) for at in of.iteration]
            panel.broken_barh(boxes, (k - 0.35, 0.7), facecolors=colours, lw=0)
            panel.plot([arrival], [k], "k|", ms=12)
        panel.set_yticks(range(len(ARRIVALS)), list(ARRIVALS))
        panel.invert_yaxis()
        panel.set(title=title, xlabel="iteration", ylabel="prompt", xlim=(-1, 53))
    return "The pure scheduler, no device. Dark: prefill; bar: arrival; k = 4."
