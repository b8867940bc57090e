"""What lending costs (Figs. 10 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes

from harness.cost.hardware import Hardware
from harness.device.location import hbm
from harness.device.topology import Topology
from harness.experiments.points import Point
from harness.sim.fabric import alone
from plots.aqua import STREAMING, paged_gb, requests
from plots.conf import hardware, spec
from plots.figure import Panels, Points, picture
from plots.panels import Look, cdfs, quantiles
from plots.runs import config, events, overrides
from plots.style import PALETTE

LENDING = {
    "flexgen": Look("isolated", PALETTE[7]),
    "flexgen_aqua": Look("shares its memory", PALETTE[2]),
}
Pair = tuple[Point, pd.DataFrame, pd.DataFrame]  # a run, requests of its borrowers, of its lender


def while_streaming(points: Points) -> list[Pair]:
    """Keeps the lender's requests that were served while the borrowers streamed, in every run of
    the seed: this is what sharing is, and so the same requests are compared."""
    every = [(point, requests(point, "opt"), requests(point, "llama")) for point in points]
    common: dict[int, set[int]] = {}
    for point, opt, llama in every:
        from_s = opt.arrival_s.min() + opt.ttft_s.min()
        until_s = (opt.arrival_s + opt.rct_s).max()
        during = llama[(llama.arrival_s > from_s) & (llama.arrival_s + llama.rct_s < until_s)]
        ids = set(during.request_id)
        common[point.seed] = common.get(point.seed, ids) & ids
    return [(p, opt, llama[llama.request_id.isin(common[p.seed])]) for p, opt, llama in every]


def summed_up(pairs: Sequence[Pair]) -> pd.DataFrame:
    """A row for each run."""
    return pd.DataFrame(
        {
            "experiment": point.experiment, "system": overrides(point)["system"],
            "seed": point.seed, "num_requests": len(llama),
            "mean_tpot_ms": 1e3 * llama.tpot_s.mean(), "mean_ttft_s": llama.ttft_s.mean(),
            "opt_tokens_per_s": 1 / opt.tpot_s.mean(),
            "mechanism": paged_gb(point, overrides(point)["system"]),
        }
        for point, opt, llama in pairs
    )  # fmt: skip


def added(rows: pd.DataFrame) -> pd.DataFrame:
    """What sharing adds to TPOT, by seed: as a share of the isolated one, and in ms."""
    of = rows.set_index("seed")
    shares, alone = of[of.system == "flexgen_aqua"], of[of.system == "flexgen"]
    return pd.DataFrame(
        {
            "experiment": shares.experiment, "system": "added",
            "tpot_share": shares.mean_tpot_ms / alone.mean_tpot_ms - 1,
            "tpot_ms": shares.mean_tpot_ms - alone.mean_tpot_ms, "mechanism": shares.mechanism,
        }
    ).reset_index()  # fmt: skip


def served(rows: pd.DataFrame) -> str:
    """How many of the lender's requests are compared, in words."""
    counts = rows.num_requests.dropna()
    return f"{counts.min():.0f} to {counts.max():.0f} requests"


def bar_each(axes: Axes, rows: pd.DataFrame, column: str, looks: Mapping[str, Look]) -> None:
    """Draws a bar for each system: the mean of `column`, in words too, and its range over seeds."""
    for k, (system, look) in enumerate(looks.items()):
        of_system = rows[rows.system == system][column]
        bar = axes.bar(k, of_system.mean(), color=look.colour, width=0.6)
        axes.bar_label(bar, fmt="%.1f", label_type="center")
        axes.plot([k, k], [of_system.min(), of_system.max()], color="k", marker="_")
    axes.set_xticks(range(len(looks)), [look.label for look in looks.values()])
    axes.grid(False, axis="x")


HARDWARE, PREFIX_TOKENS = "h100x8", 99_744  # section 9.1: 100,000, of which the last 256 differ
HIT_EVERY_S = 10.0  # a hit in ten requests (section 9.3), of 1 request/s: our choice, and plenty
PUBLISHED_LOSS = 0.05  # AudioGen's, at most
PRODUCERS = {"audio": "AudioGen", "images": "images"}


def of_one(points: Points) -> pd.DataFrame:
    """A row for each run, what sharing adds by seed, the bounds; CDFs of TPOT over all seeds."""
    pairs = while_streaming([point for point in points if point.experiment == "aqua_fig10"])
    rows = summed_up(pairs)
    more = added(rows).assign(system="difference").rename(columns={"tpot_ms": "mean_tpot_ms"})
    tables = [rows, more, bounded(points)]
    for system in LENDING:
        of = [llama.tpot_s for point, _, llama in pairs if overrides(point)["system"] == system]
        named = {"row": "cdf", "experiment": "aqua_fig10", "system": system}
        tables.append(quantiles(pd.concat(of)).assign(**named))
    return pd.concat(tables, ignore_index=True)


def bounded(points: Points) -> pd.DataFrame:
    """The most of a producer's throughput that its borrower's copies can take: the share of time in
    which they move, times the share of its memory bandwidth that they have then.

    AudioGen lends to Llama-3.1-70B, whose paging in Fig. 8's burst is counted; image models lend to
    Yi-34B-200K, whose prefix comes once in HIT_EVERY_S (section 9.3)."""
    device = hardware(HARDWARE)
    bandwidth = device.memory_bandwidth_bytes_per_s
    images = device.nvlink_copy_bytes_per_s / bandwidth * hit_s(device) / HIT_EVERY_S
    rows = [{"system": "images", "seed": 0, "inputs": "ours", "lost_share": images}]
    for point in points:
        if point.experiment == "aqua_fig08" and overrides(point)["system"] == "aqua":
            burst = config(point.folder)["workload"]["arrivals"]["burst"]
            start_s, burst_s = burst["start_s"], burst["duration_s"]
            moves = events(point.folder, "kv_move")
            moves = moves[moves.end_s.between(start_s, start_s + burst_s)]
            copied = float(moves.bytes.sum()) if len(moves) else 0.0
            row = {"system": "audio", "seed": point.seed, "config_hash": point.config_hash()}
            row["lost_share"] = copied / burst_s / bandwidth
            rows.append(row | {"mechanism": paged_gb(point, "aqua")})
    return pd.DataFrame(rows)


def hit_s(device: Hardware) -> float:
    """Seconds in which a prefix's KV comes from a neighbour, gathered, and is scattered."""
    model = spec("yi-34b-200k")
    size = PREFIX_TOKENS * model.kv_bytes_per_token // model.tp
    path = Topology(device).path(hbm(0, 1), hbm(0, 0))
    achieved = device.memory_bandwidth_bytes_per_s * device.calibration.memory_efficiency
    return path.latency_s + size / alone(path) + 2 * size / achieved


@picture(
    "aqua_fig10", of_one, ("aqua_fig10", "aqua_fig08"), shape=(1, 3), size=(10, 3.8), quick=False,
)  # fmt: skip
def fig10(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 10: what lending costs producers of one GPU.

    (a) audio and image models: a bound, by the memory bandwidth that the copies of their borrowers
    take, were all of their work bound by it: no engine of ours runs them. (b), (c) Llama-3.1-8B:
    its TPOT while OPT-30B's KV streams through its memory, and while it streams through DRAM, which
    leaves the lender alone.
    """
    producers, means, shares = axes
    lost = 100 * rows.groupby("system").lost_share.max()[list(PRODUCERS)]
    bars = producers.bar(list(PRODUCERS.values()), lost, color=PALETTE[2])
    producers.bar_label(bars, fmt="%.2g %%")
    producers.axhline(100 * PUBLISHED_LOSS, color="0.5", ls="--", lw=0.8)
    producers.set(title="(a) lost, a bound", ylabel="% of throughput")
    bar_each(means, rows[rows.row != "cdf"], "mean_tpot_ms", LENDING)
    means.set(title="(b) Llama-3.1-8B", ylabel="mean TPOT (ms)")
    cdfs(shares, rows[rows.row == "cdf"], LENDING, factor=1e3)
    shares.set(title="(c) the same requests", xlabel="TPOT (ms)", xscale="linear", xlim=(0, None))
    shares.legend(loc="upper left")
    return (
        "(a): no run of theirs: bandwidth that a burst's paging (AudioGen, the highest seed) and "
        "prefixes (images) take; dashed: the paper's 5 %. (b), (c): 5 requests/s; KV of OPT-30B's "
        f"8,192 tokens streams and takes bandwidth; {served(rows)} a seed, served whole meanwhile; "
        "mean and range of the seeds, all seeds together."
    )


COPIES_FIRST = "aqua_fig11_no_overlap"
FOUR = STREAMING | {
    f"{system}_first": look._replace(label=f"{look.label},\ncopies first")
    for system, look in STREAMING.items()
}  # fmt: skip


def of_four(points: Points) -> pd.DataFrame:
    """A row for each run, and what sharing adds by seed. Runs that copy before they compute are
    systems of their own, with no part in what is added."""
    rows = summed_up(while_streaming([p for p in points if p.experiment != COPIES_FIRST]))
    first = summed_up(while_streaming([p for p in points if p.experiment == COPIES_FIRST]))
    hashes = [p.config_hash() for p in points if p.experiment == COPIES_FIRST]
    first = first.assign(system=first.system + "_first", config_hash=hashes)
    return pd.concat([rows, added(rows), first], ignore_index=True)


@picture(
    "aqua_fig11", of_four, ("aqua_fig11", COPIES_FIRST), shape=(1, 2), size=(10, 3.8),
    quick=False,
)  # fmt: skip
def fig11(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 11: what lending costs Llama-3.1-70B on four GPUs (a), and tokens/s of each of four
    OPT-30B, whose KV streams through one of them each (b)."""
    llama, opt = axes
    shared = rows[rows.experiment != COPIES_FIRST]
    bar_each(llama, shared, "mean_tpot_ms", LENDING)
    looks = {name: look for name, look in FOUR.items() if (rows.system == name).any()}
    bar_each(opt, rows, "opt_tokens_per_s", looks)
    llama.set(title="(a) Llama-3.1-70B on 4 GPUs", ylabel="mean TPOT (ms)")
    opt.set(title="(b) each of four OPT-30B, 8,192 tokens", ylabel="tokens/s after the first")
    return (
        f"Mean and range of the seeds. (a): {served(shared)} a seed, the same in both, served "
        "whole while KV streams. Copies overlap, unless (b) says copies first (one seed). They "
        "take memory bandwidth; that they meet all-reduces on NVLink is not modelled."
    )
