"""Fig. 19: host memory that holds parameters over time, in copies of the model over hosts.

Derived from when instances held their slots, by each system's own rule: ServerlessLLM's host cache
with its TTL (`HostCache`), BlitzScale's pool, which has one host copy while no GPU holds one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import OVER_TIME_S, SYSTEMS, WORKLOADS, Floats, Run, curve, held, row, runs
from plots.panels import legend_above
from plots.runs import events
from plots.style import figure
from systems.blitzscale.parameters import HostCache

EXPERIMENTS = ("blitzscale_fig17",)
TTL_S = {"serverlessllm": 300.0, "serverlessllm_30s": 30.0, "blitzscale": 0.0}
WIDTHS = {"serverlessllm": 3.2, "serverlessllm_30s": 1.4, "blitzscale": 1.4}
SHOWN_SEED = 0


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    used = [point for point in points if not set(TTL_S).isdisjoint(point.overrides.values())]
    for run in runs(used):
        seconds, copies, serving, hosts = host_copies(run)
        if run.system == "blitzscale":
            run.mechanism = float(len(events(run.path, "host_copy")))
        rows.append(row(run, "host copies, most", float(copies.max())))
        over = copies[serving > 0].sum() / serving[serving > 0].sum()
        rows.append(row(run, "host copies over hosts that serve", float(over)))
        if run.seed == SHOWN_SEED:
            step = int(OVER_TIME_S)
            rows += curve(run, "host copies over hosts", seconds[::step], copies[::step] / hosts)
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 3, width=9, height=3.2)
    curves = rows[rows.quantity == "host copies over hosts"]
    for panel, (workload, title) in zip(axes, WORKLOADS.items(), strict=True):
        for system, width in WIDTHS.items():
            shown = curves[(curves.workload == workload) & (curves.system == system)]
            label, colour, _, line = SYSTEMS[system]
            panel.step(
                shown.x, shown.value, color=colour, ls=line, lw=width, label=label, where="post"
            )  # fmt: skip
        panel.set(title=title, xlabel="seconds", ylim=(-0.03, 1.1))
    axes[0].set_ylabel("host copies / hosts")
    legend_above(made, axes, len(WIDTHS))
    return made, f"Seed {SHOWN_SEED}. AllCache: 1 throughout. BlitzScale: a GPU always has a copy."


def host_copies(run: Run) -> tuple[Floats, Floats, Floats, int]:
    """At each whole second: copies of the model in host memory, hosts whose GPUs serve; and the
    number of hosts."""
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    per_host = config["hardware"]["devices_per_node"]
    hosts = config["hardware"]["num_devices"] // per_host
    slots = held(run.path).query("role != 'loading'")
    first_gpu = slots.instance.str.rpartition("-")[2].astype(int) * config["model"]["tp"]
    nodes = (first_gpu // per_host).to_numpy()
    changes = sorted(
        [(start, 1, node) for start, node in zip(slots.start_s, nodes, strict=True)]
        + [(end, -1, node) for end, node in zip(slots.end_s, nodes, strict=True)]
    )
    cache, serving = HostCache(TTL_S[run.system]), dict.fromkeys(range(hosts), 0)
    seconds = np.arange(0.0, np.ceil(slots.end_s.max()))
    copies, busy, done = np.zeros(len(seconds)), np.zeros(len(seconds)), 0
    for i, second in enumerate(seconds):
        while done < len(changes) and changes[done][0] <= second:
            at_s, change, node = changes[done]
            serving[node] += change
            if change > 0:
                cache.loaded(node)
            else:
                cache.reclaimed(node, at_s)
            done += 1
        busy[i] = sum(count > 0 for count in serving.values())
        pooled = float(not any(serving.values()))
        copies[i] = pooled if run.system == "blitzscale" else cache.copies(second)
    return seconds, copies, busy, hosts
