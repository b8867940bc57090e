"""How well the law predicts what it has not seen: each model, then each device, left out.

A model is left out with its twins, which have the same layers, and a device with all others of its
chip: Llama-2-7B would tell the law of Qwen-7B too much, and an H800 of an H100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd

from harness.calibrate import zoo
from harness.calibrate.fit import fit_law
from harness.calibrate.profiles import Cells
from harness.calibrate.scores import scores, table


def leave_one_out(cells: Sequence[Cells], what: Literal["model", "device"]) -> pd.DataFrame:
    """Scores of every pair, predicted by a law fitted without its model and that one's twins, or
    without its chip."""
    group = [layers(c.model) if what == "model" else chip(c.device) for c in cells]
    rows = []
    for name in sorted(set(group)):
        law = fit_law([c for c, own in zip(cells, group, strict=True) if own != name])
        rows += [
            scores(c, law.terms(c)) for c, own in zip(cells, group, strict=True) if own == name
        ]
    return table(rows)


def layers(model: str) -> str:
    """The same for models with as many layers of equal size and KV: their names differ, and little
    else that iteration times could show."""
    spec = zoo.model(model)
    return f"{spec.num_layers} layers of {spec.hidden_size}, {spec.num_kv_heads} KV heads"


def chip(device: str) -> str:
    """The same for devices with the same FLOP/s: their memories and links may differ."""
    return f"{zoo.device(device).dense_flop_per_s:g} FLOP/s"
