"""Fig. 10: what lending costs.

(a) audio and image models: a bound, by the memory bandwidth that the copies of their borrowers
take, were all of their work bound by it: no engine of ours runs them. (b), (c) Llama-3.1-8B: its
TPOT while OPT-30B's KV streams through its memory, and while it streams through DRAM, which leaves
the lender alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.device.location import hbm
from harness.experiments.points import Point
from plots.aqua import LENDING, bar_each, config, events, overrides, paged_gb
from plots.aqua_fig11 import added, run, while_streaming
from plots.aqua_prefix import HARDWARE, MODEL, copy_s, prefix_bytes
from plots.aqua_table_bandwidth import hardware, model
from plots.panels import cdfs, quantiles
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_fig10", "aqua_fig08")
HIT_EVERY_S = 10.0  # a hit in ten requests (section 9.3), of 1 request/s: our choice, and plenty
PUBLISHED_LOSS = 0.05  # AudioGen's, at most
PRODUCERS = {"audio": "AudioGen", "images": "images"}


def table(points: Sequence[Point]) -> pd.DataFrame:
    """A row for each run, what sharing adds by seed, the bounds; CDFs of TPOT over all seeds."""
    pairs = [point for point in points if point.experiment == "aqua_fig10"]
    rows = pd.DataFrame([run(point, pairs) for point in pairs])
    more = added(rows).assign(system="difference").rename(columns={"tpot_ms": "mean_tpot_ms"})
    tables = [rows, more, bounded(points)]
    for system in LENDING:
        mine = [point for point in pairs if overrides(point)["system"] == system]
        tpot_s = pd.concat([while_streaming(point, pairs).tpot_s for point in mine])
        named = {"row": "cdf", "experiment": "aqua_fig10", "system": system}
        tables.append(quantiles(tpot_s).assign(**named))
    return pd.concat(tables, ignore_index=True)


def bounded(points: Sequence[Point]) -> pd.DataFrame:
    """The most of a producer's throughput that its borrower's copies can take: the share of time in
    which they move, times the share of its memory bandwidth that they have then.

    AudioGen lends to Llama-3.1-70B, whose paging in Fig. 8's burst is counted; image models lend to
    Yi-34B-200K, whose prefix comes once in HIT_EVERY_S (section 9.3)."""
    device = hardware(HARDWARE)
    share = device.nvlink_copy_bytes_per_s / device.memory_bandwidth_bytes_per_s
    hit_s = copy_s(prefix_bytes(model(MODEL)), hbm(0, 1), None)
    lost_share = share * hit_s / HIT_EVERY_S
    rows: list[dict[str, object]] = [
        {"system": "images", "seed": 0, "inputs": "ours", "lost_share": lost_share}
    ]
    for point in points:
        if point.experiment == "aqua_fig08" and overrides(point)["system"] == "aqua":
            burst = config(point)["workload"]["arrivals"]["burst"]
            start_s, burst_s = burst["start_s"], burst["duration_s"]
            moves = events(point, "kv_move")
            moves = moves[moves.end_s.between(start_s, start_s + burst_s)]
            copied = float(moves.bytes.sum()) if len(moves) else 0.0
            lost = copied / burst_s / device.memory_bandwidth_bytes_per_s
            rows.append(
                {
                    "system": "audio", "seed": point.seed, "config_hash": point.config_hash(),
                    "lost_share": lost, "mechanism": paged_gb(point, "aqua"),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (producers, means, shares) = figure(1, 3, width=10, height=3.8)
    lost = 100 * rows.groupby("system").lost_share.max()[list(PRODUCERS)]
    bars = producers.bar(list(PRODUCERS.values()), lost, color=PALETTE[2])
    producers.bar_label(bars, fmt="< %.2g %%")
    producers.axhline(100 * PUBLISHED_LOSS, color="0.5", ls="--", lw=0.8)
    producers.set(title="(a) lost, a bound", ylabel="% of throughput")
    bar_each(means, rows[rows.row != "cdf"], "mean_tpot_ms", LENDING)
    means.set(title="(b) Llama-3.1-8B", ylabel="mean TPOT (ms)")
    cdfs(shares, rows[rows.row == "cdf"], LENDING, factor=1e3)
    shares.set(title="(c) the same requests", xlabel="TPOT (ms)", xscale="linear", xlim=(0, None))
    shares.legend(loc="upper left")
    return made, (
        "(a): no run of theirs: bandwidth that a burst's paging (AudioGen) and prefixes (images) "
        "take; dashed: the paper's 5 %. (b), (c): 5 requests/s; KV of OPT-30B's 8,192 tokens "
        "streams and takes bandwidth; mean and range of the seeds, all seeds together."
    )
