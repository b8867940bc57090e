"""Fig. 9: TTFT of a hit on a cached prefix (a), and tokens/s of OPT-30B on a long prompt, KV
streamed from DRAM and from a neighbour, with copies beside computing and without (b).

(a) is arithmetic (`aqua_prefix`), since 100,000 tokens are more than any run here has. What a hit
costs the requests behind it is not in it. The paper draws a run of 30 requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aqua import STREAMING, config, overrides, paged_gb, requests
from plots.aqua_prefix import hits
from plots.panels import legend_above
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_fig09b",)
OVERLAP = {"on": "copies beside computing", "off": "copies, then computing"}
HITS = {
    "first": ("first time", PALETTE[7]), "cfs_dram": ("DRAM,\nblock by block", PALETTE[1]),
    "cfs_dram_gathered": ("DRAM,\ngathered", PALETTE[1]), "aqua": ("AQUA", PALETTE[2]),
}  # fmt: skip


def table(points: Sequence[Point]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame([streamed(point) for point in points]), hits()])


def streamed(point: Point) -> dict[str, object]:
    """A run of equal long prompts, one at a time: nothing in it is random."""
    of, system = requests(point), overrides(point)["system"]
    return {
        "row": "steady", "system": system, "seed": point.seed,
        "overlap": "on" if config(point)["system"]["consumer"]["overlap"] else "off",
        "tokens_per_s": 1 / of.tpot_s.mean(), "config_hash": point.config_hash(),
        "with_prompts_tokens_per_s": of.output_tokens.sum()
        / (of.arrival_s + of.rct_s - of.arrival_s.min()).max(),
        "mechanism": paged_gb(point, system),
    }  # fmt: skip


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (left, right) = figure(1, 2, width=9, height=3.8)
    for k, (system, (_, colour)) in enumerate(HITS.items()):
        hit = rows[(rows.row == "hit") & (rows.system == system)].iloc[0]
        left.bar(k, hit.load_s, color=colour)
        computed = left.bar(k, hit.compute_s, bottom=hit.load_s, color=PALETTE[7])
        left.bar_label(computed, [f"{hit.ttft_s:.2g} s"])
    left.set_xticks(range(len(HITS)), [label for label, _ in HITS.values()])
    left.set(ylabel="TTFT (s)", title="(a) Yi-34B-200K, prefix of 100k tokens")
    computed.set_label("computed")
    for k, (system, look) in enumerate(STREAMING.items()):
        of = rows[(rows.row == "steady") & (rows.system == system)].set_index("overlap")
        at = [i + 0.4 * k for i in range(len(OVERLAP))]
        rates = of.tokens_per_s.reindex(list(OVERLAP))
        right.bar_label(right.bar(at, rates, 0.38, color=look.colour, label=look.label), fmt="%.1f")
    right.set_xticks([0.2, 1.2], list(OVERLAP.values()))
    right.set(ylabel="tokens/s after the first", title="(b) OPT-30B, 8,192 tokens")
    legend_above(made, (left, right), 3)
    return made, (
        "(a): no run: cost model and links, a request alone, its prefix loaded (colour) before it "
        "runs. (b): equal prompts, one at a time; nothing is random. An idle neighbour lends."
    )
