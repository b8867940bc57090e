"""From the profiler's profiles over the placer's pairs to a run (sections 4, 5 and 9.3): Fig. 8's
burst with the two lenders that the paper has, of which one serves meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aqua import SYSTEMS, paged_gb, requests
from plots.aqua.bursts import phased, phases, summed_up
from plots.figure import Panels, Points, picture
from plots.panels import Look, lines
from plots.runs import config, events, overrides
from plots.style import PALETTE, log_scale

CONSUMER, SERVES = "llama70b", "llama8b"  # the names that requests carry
LENDERS = {
    "llama3.1-8b": Look("Llama-3.1-8B", PALETTE[1], "s"),
    "audiogen": Look("AudioGen (memory alone)", PALETTE[4]),
}
LOOKS = {"fcfs": SYSTEMS["fcfs"], "aqua": SYSTEMS["aqua"]}


def chain(points: Points) -> pd.DataFrame:
    """A row for each run of the chain and for each of its lenders; FCFS is Fig. 8's run of the
    seed, whose requests are the same."""
    fcfs = {
        point.seed: phases(point).assign(config_hash=point.config_hash())
        for point in points
        if point.experiment == "aqua_fig08" and overrides(point)["system"] == "fcfs"
    }
    rows: list[dict[str, Any]] = []
    for point in points:
        if point.experiment != "aqua_end_to_end":
            continue
        named = {"load": float(overrides(point)["factor"]), "seed": point.seed}
        own, alone = burst(point), fcfs[point.seed]
        same = own[["arrival_s", "prompt_tokens"]].to_numpy()
        assert np.array_equal(same, alone[["arrival_s", "prompt_tokens"]]), "the same requests"
        more = {"row": "run", "mechanism": paged_gb(point, "aqua")}
        more["config_hash"] = point.config_hash()
        lender = requests(point, SERVES)
        more |= {"lender_ttft_s": lender.ttft_s.mean(), "lender_tpot_s": lender.tpot_s.mean()}
        rows.append(named | summed_up(own) | more | {"system": "aqua"})
        of_fcfs = {"row": "run", "system": "fcfs", "config_hash": alone.config_hash.iloc[0]}
        rows.append(named | summed_up(alone) | of_fcfs)
        rows += [named | each for each in lenders(point, own)]
    return pd.DataFrame(rows)


def burst(point: Point) -> pd.DataFrame:
    arrivals = config(point.folder)["workload"]["parts"][CONSUMER]["arrivals"]
    return phased(requests(point, CONSUMER), arrivals["burst"])


def lenders(point: Point, own: pd.DataFrame) -> list[dict[str, Any]]:
    """What each of the placer's lenders lent until the consumer's last token, and what was paged
    there. A lease's event has its lender's name; the placer's lenders stand behind the consumer."""
    until_s = own.last_s.max()
    leases, moves = events(point.folder, "lease"), events(point.folder, "kv_move")
    moves = moves[moves.purpose == "page out to lease"] if len(moves) else moves
    rows = []
    (pair,) = config(point.folder)["system"]["pairs"]
    for number, lender in enumerate(pair["lenders"], start=1):
        instance = f"sim-{number}"
        of = leases[leases.instance == instance]
        held_s = (of.end_s.clip(upper=until_s) - of.start_s).clip(lower=0)
        there = moves[moves.to.str.contains(f"lent by {instance} ")] if len(moves) else moves
        rows.append(
            {
                "row": "lender", "system": "aqua", "lender": lender["model"], "leases": len(of),
                "lent_gb": (held_s * of.bytes).sum() / until_s / 1e9,
                "most_lent_gb": of.bytes.max() / 1e9,
                "paged_gb": there.bytes.sum() / 1e9 if len(there) else 0.0,
                "config_hash": point.config_hash(),
            }
        )  # fmt: skip
    return rows


@picture(
    "aqua_end_to_end", chain, ("aqua_end_to_end", "aqua_fig08"), shape=(1, 2), size=(9, 3.8)
)  # fmt: skip
def end_to_end(axes: Panels, rows: pd.DataFrame) -> str:
    """Section 9.3 from end to end: profiles, the placer's pairs, the run. (a) peak TTFT of
    Llama-3.1-70B in Fig. 8's burst, (b) what its two lenders lend, by the load of the one that
    serves."""
    peaks, lent = axes
    lines(peaks, rows[rows.row == "run"], "load", "peak_ttft_s", LOOKS)
    log_scale(peaks, "y")
    peaks.set(title="(a) Llama-3.1-70B in the burst", ylabel="peak TTFT (s)")
    lines(lent, rows[rows.row == "lender"], "load", "lent_gb", LENDERS, by="lender")
    lent.set(title="(b) lent to one shard each", ylabel="mean over the run (GB)", ylim=(0, None))
    for panel in axes:
        panel.set(xlabel="load of Llama-3.1-8B over its stable rate")
        panel.legend(loc="best")
    seeds = rows.seed.nunique()
    return (
        "Lenders are the placer's, from the profiler's files. A prompt's KV lies with both lenders "
        f"or with none. Three loads; mean and range of {seeds} seeds; FCFS is Fig. 8's, of the "
        "same requests."
    )
