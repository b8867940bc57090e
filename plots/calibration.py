"""`python -m plots.calibration`: the cost model's errors, pair by pair, fitted and left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from harness.calibrate.scores import (
    DECODE_BAR_PCT,
    LEFT_OUT_DECODE_BAR_PCT,
    LEFT_OUT_PREFILL_BAR_PCT,
    PREFILL_BAR_PCT,
)
from harness.errors import RunError
from plots.caption import caption
from plots.style import PALETTE, figure, save

FOLDER = Path("results/published/calibration")
SERIES = {
    "fitted to the pair": "fit.csv",
    "its model left out": "crossval_model.csv",
    "its device left out": "crossval_device.csv",
}
BARS = {
    "prefill": (PREFILL_BAR_PCT, LEFT_OUT_PREFILL_BAR_PCT),
    "decode": (DECODE_BAR_PCT, LEFT_OUT_DECODE_BAR_PCT),
}
LATENCIES = "Aegaeon's artifact (vLLM, eager mode, fp16), clean cells, medians of 12 runs"


def draw(folder: Path = FOLDER) -> Path:
    """Makes `folder`/crossval.png from the CSV files beside it and returns its path."""
    tables = {}
    for label, name in SERIES.items():
        if not (folder / name).is_file():
            raise RunError(f"{folder / name} is missing: run `python -m harness.calibrate` first")
        tables[label] = pd.read_csv(folder / name)
    made, axes = figure(1, 2, width=9, height=6.5)
    for panel, (phase, (fitted, left_out)) in zip(axes, BARS.items(), strict=True):
        for i, (label, table) in enumerate(tables.items()):
            names = table.model + " " + table.device.str.removesuffix("_sxm").str.upper()
            names += [f" TP{tp}" if tp > 1 else "" for tp in table.tp]
            panel.scatter(table[f"{phase}_mape_pct"], names, color=PALETTE[i], s=18, label=label)
        panel.axvline(fitted, color=PALETTE[0], ls="--", lw=1)
        panel.axvline(left_out, color="0.3", ls="--", lw=1)
        panel.set(title=phase, xlabel="mean absolute error (%); dashed: the bars", xlim=(0, None))
        panel.invert_yaxis()
    axes[1].tick_params(labelleft=False)
    axes[1].legend(loc="upper right")
    made.suptitle("Errors of the cost model against measured step times", fontweight="bold")
    caption(made, "", [LATENCIES])
    return save(made, folder / "crossval.png")


if __name__ == "__main__":
    try:
        print(draw())
    except RunError as error:
        sys.exit(f"error: {error}")
