"""Where the time between tokens comes from on AzureCode: requests that wait for their decode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from plots.blitzscale.runs import MEASURES, SYSTEMS, Run, runs
from plots.figure import Panels, Points, picture
from plots.panels import over_seeds

PRESCALING = {True: "pre-scaling", False: "no pre-scaling"}
GAPS = {
    "mean gap, second token": "first to second token",
    "mean gap, later tokens": "between later tokens",
}


def gaps(points: Points) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for run in runs(points):
        rows += _of_run(run)
    found = pd.DataFrame(rows)
    found["load"] = np.where(found.rate == found.rate.min(), "half", "all")
    mean = found[found.quantity == "mean TBT"]
    keys = ["prescaling", "load", "seed"]
    ours = mean[mean.system == "blitzscale"].set_index(keys).value
    others = mean[mean.system != "blitzscale"]
    saved = others.assign(
        quantity="share of mean TBT saved", against=others.system, system="blitzscale",
        value=[1 - ours[*key] / value for *key, value in others[[*keys, "value"]].to_numpy()],
        mechanism=others.loads_from_ssd,
    )  # fmt: skip
    return pd.concat([found, saved], ignore_index=True)


def _of_run(run: Run) -> Iterator[dict[str, Any]]:
    """`loads_from_ssd`: how many, which is what shorter gaps are said to come from."""
    config, times = run.config(), [each for each in run.requests().token_times_s if len(each) > 1]
    second = np.array([each[1] - each[0] for each in times])
    later = np.concatenate([np.diff(each[1:]) for each in times])
    loads = run.loads()
    values = {
        "mean TBT": MEASURES["mean TBT"](run), "P99 TBT": MEASURES["P99 TBT"](run),
        "mean gap, second token": second.mean(), "mean gap, later tokens": later.mean(),
        "requests that wait over 1 s for the second token": (second > 1).mean(),
        "decodes loaded": _decodes(run),
    }  # fmt: skip
    about = {
        "prescaling": config["system"]["prescaling"], "rate": config["workload"]["scale"]["rate"],
        "loads_from_ssd": int(loads.source.str.startswith("ssd").sum()),
        "config_hash": run.point.config_hash(),
    }  # fmt: skip
    yield from run.rows(values, **about)


def _decodes(run: Run) -> int:
    """Instances that were loaded and then decoded."""
    slots = run.slots()
    loaded = slots[(slots.role == "loading") & (slots.start_s >= 0)][["instance", "end_s"]]
    decoding = slots[slots.role == "decode"][["instance", "start_s"]]
    both = loaded.merge(decoding, left_on=["instance", "end_s"], right_on=["instance", "start_s"])
    return len(both)


SHOWN = ("blitzscale", "allcache", "serverlessllm_no_room")


@picture("blitzscale_tbt", gaps, ("blitzscale_tbt",), shape=(1, 4), size=(13, 3.2))
def tbt(axes: Panels, rows: pd.DataFrame) -> str:
    """Sections 6.1 and 6.3: the time between tokens on AzureCode, whose decodes "are triggered
    later", so that "the slow scale of ServerlessLLM's SSD cannot be hidden". Left: the gap from a
    request's first token to its second, in which its KV moves and it waits for a decode.
    ServerlessLLM loads all from SSD."""
    panels = product(("half", "all"), GAPS)
    for panel, (load, name) in zip(axes, panels, strict=True):
        of_panel = rows[(rows.load == load) & (rows.quantity == name)]
        for k, on in enumerate(PRESCALING):
            mine = of_panel[of_panel.prescaling == on]
            each = over_seeds(mine, "system", "value", 1000).loc[list(SHOWN)]
            at = np.arange(len(SHOWN)) + 0.4 * k - 0.2
            colours = [SYSTEMS[system].colour for system in SHOWN]
            panel.bar(
                at, each["mean"], 0.38, color=colours, yerr=[each.below, each.above],
                alpha=1.0 if on else 0.5,
            )  # fmt: skip
        labels = [SYSTEMS[system].label.replace(", ", ",\n") for system in SHOWN]
        panel.set_xticks(range(len(SHOWN)), labels, fontsize=6)
        title = f"{GAPS[name]},\n{load} of the capacity"
        panel.set(title=title, ylabel="mean gap (ms)", ylim=(0, None))
        panel.grid(False, axis="x")
    return (
        "AzureCode, 8B, cluster B, empty caches; mean and range of seeds; scales differ. Pale: "
        "without pre-scaling. S-LLM: all of its loads come from SSD."
    )
