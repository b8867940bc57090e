"""Fig. 9: TTFT of a hit on a cached prefix (a), and tokens/s of OPT-30B on a long prompt, KV
streamed from DRAM and from a neighbour, with copies beside computing and without (b).

(a) is arithmetic (`aqua_prefix`), since 100,000 tokens are more than any run here has. What a hit
costs the requests behind it is not in it. The paper draws a run of 30 requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import config, overrides, requests
from plots.aqua_prefix import hits
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_fig09b",)
LABELS = {"flexgen": ("FlexGen, DRAM", PALETTE[1]), "flexgen_aqua": ("AQUA", PALETTE[2])}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = []
    for point in points:
        overlap = config(point)["system"]["consumer"]["overlap"]
        of = requests(point)
        rows.append(
            {
                "system": overrides(point)["system"], "overlap": "on" if overlap else "off",
                "seed": 0, "tokens_per_s": 1 / of.tpot_s.mean(),
                "with_prompts_tokens_per_s": of.output_tokens.sum()
                / (of.arrival_s + of.rct_s - of.arrival_s.min()).max(),
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    made, (left, panel) = figure(1, 2, width=9, height=3.8)
    prefix = hits()
    draw_hits(left, prefix)
    for k, (system, (label, colour)) in enumerate(LABELS.items()):
        for i, overlap in enumerate(("on", "off")):
            row = table[(table.system == system) & (table.overlap == overlap)].iloc[0]
            bar = panel.bar(
                i + 0.4 * k, row.tokens_per_s, width=0.38, color=colour,
                label=label if i == 0 else None,
            )  # fmt: skip
            panel.bar_label(bar, fmt="%.1f")
    panel.set_xticks([0.2, 1.2], ["copies beside computing", "copies, then computing"])
    panel.set(ylabel="tokens/s after the first", title="(b) OPT-30B, 8,192 tokens")
    panel.legend()
    stamp(
        made, points, "(a): no run: cost model and links, a request alone, loaded before it runs. "
        "(b): equal prompts, one at a time; nothing is random. An idle neighbour lends.",
    )  # fmt: skip
    table = pd.concat([table, prefix], ignore_index=True)
    return publish(made, table, folder, Path(__file__).stem)


def draw_hits(panel: Axes, prefix: pd.DataFrame) -> None:
    labels = ["first time", "DRAM,\nblock by block", "DRAM,\ngathered", "AQUA"]
    colours = [PALETTE[1]] * (len(labels) - 1) + [PALETTE[2]]
    panel.bar(labels, prefix.load_s, color=colours, label=["", "prefix comes", "", ""])
    bars = panel.bar(
        labels, prefix.compute_s, bottom=prefix.load_s, color=PALETTE[7], label="computed"
    )
    panel.bar_label(bars, labels=[f"{s:.2g} s" for s in prefix.ttft_s])
    panel.set(ylabel="TTFT (s)", title="(a) Yi-34B-200K, prefix of 100k tokens")
    panel.legend()
