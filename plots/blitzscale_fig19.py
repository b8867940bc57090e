"""Fig. 19: host memory that holds parameters over time, in copies of the model over hosts.

Derived from when instances held their slots, by each system's own rule: ServerlessLLM's host cache
with its TTL (`HostCache`), BlitzScale's pool, which has one host copy while no GPU holds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.blitzscale import SYSTEMS, WORKLOADS, Floats, Run, held, row, runs
from plots.caption import stamp
from plots.style import figure
from systems.blitzscale.host_cache import HostCache

EXPERIMENTS = ("blitzscale_fig17",)
SHOWN = {"serverlessllm": 300.0, "serverlessllm_30s": 30.0, "blitzscale": 0.0}  # TTL, s
SHOWN_SEED = 0


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = []
    made, axes = figure(1, 3, width=9, height=3.2)
    used = [point for point in points if not set(SHOWN).isdisjoint(point.overrides.values())]
    for run in runs(used):
        seconds, copies, serving, hosts = host_copies(run)
        rows.append(row(run, "host copies, most", float(copies.max())))
        over = copies[serving > 0].sum() / serving[serving > 0].sum()
        rows.append(row(run, "host copies over hosts that serve", float(over)))
        if run.seed == SHOWN_SEED:
            panel = axes[list(WORKLOADS).index(run.workload)]
            label, colour, line = SYSTEMS[run.system]
            panel.step(seconds, copies / hosts, color=colour, ls=line, label=label, where="post")
            rows += [row(run, "host copies", n, x=x) for x, n in zip(seconds, copies, strict=True)]
    for panel, title in zip(axes, WORKLOADS.values(), strict=True):
        panel.set(title=title, xlabel="seconds", ylim=(-0.03, 1.1))
    axes[0].set_ylabel("copies / hosts")
    axes[2].legend(loc="center right", fontsize=7)
    stamp(made, used, f"Seed {SHOWN_SEED}. AllCache: 1 throughout.")
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


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
    cache, serving = HostCache(SHOWN[run.system]), dict.fromkeys(range(hosts), 0)
    seconds = np.arange(0.0, np.ceil(slots.end_s.max()))
    copies, busy, done = np.zeros(len(seconds)), np.zeros(len(seconds)), 0
    for i, second in enumerate(seconds):
        while done < len(changes) and changes[done][0] <= second:
            at_s, change, node = changes[done]
            serving[node] += change
            if change > 0:
                cache.loaded(node, "model")
            else:
                cache.reclaimed(node, "model", at_s)
            done += 1
        busy[i] = sum(count > 0 for count in serving.values())
        pooled = float(not any(serving.values()))
        copies[i] = pooled if run.system == "blitzscale" else cache.copies("model", second)
    return seconds, copies, busy, hosts
