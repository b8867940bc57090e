"""Fig. 8: a new instance loads from a prefill, whose KV leaves by the same NIC, or from the decode,
whose NIC only receives.

Three instances on nodes of their own, simulated on cluster B's NICs: a prefill computes prompts one
after the other, their KV goes to a decode, which makes one token more of each; a third instance
loads meanwhile. The length of prompts and the model say how much of the NIC the KV takes; the
paper's are not known. TBT: from a prompt's first token to its second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from hydra import compose
from matplotlib.figure import Figure

from harness.clock import Task
from harness.configuration.config import build
from harness.configuration.options import plain
from harness.experiments.points import Point
from harness.request import Request
from harness.running import testbed
from harness.running.testbed import Bed, decode, prefill
from plots.conf import hardware, spec
from plots.panels import legend_above
from plots.style import PALETTE, figure

EXPERIMENTS: tuple[str, ...] = ()
MODELS = {"llama3-8b": "Llama3-8B", "llama2-7b": "Llama2-7B"}
SOURCES = ("decode", "prefill")
PROMPT_TOKENS = (500, 1000, 2000, 4000)
SHOWN = ("load (s)", "P99 TBT (s)")


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    for model in MODELS:
        for tokens in PROMPT_TOKENS:
            about = {"model": model, "prompt_tokens": tokens, "inputs": "drawn"}
            found = {source: measured(model, tokens, source) for source in SOURCES}
            for source, values in found.items():
                rows += [
                    about | {"source": source, "quantity": name, "value": value}
                    for name, value in values.items()
                ]
            for name in SHOWN:
                ratio = found["prefill"][name] / found["decode"][name]
                over = f"{name.removesuffix(' (s)')} from a prefill over from the decode"
                rows.append(about | {"quantity": over, "value": ratio})
                rows.append(about | {"quantity": f"{over}, less one", "value": ratio - 1})
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 4, width=12, height=3)
    shown = [(model, name) for model in MODELS for name in SHOWN]
    for panel, (model, name) in zip(axes, shown, strict=True):
        of_panel = rows[(rows.quantity == name) & (rows.model == model)]
        for j, source in enumerate(SOURCES):
            bars = of_panel[of_panel.source == source]
            at = np.arange(len(bars)) + 0.4 * j - 0.2
            panel.bar(at, bars.value, 0.38, color=PALETTE[j], label=f"from a {source}")
        panel.set_xticks(range(len(PROMPT_TOKENS)), [str(n) for n in PROMPT_TOKENS])
        panel.set(title=f"{MODELS[model]}: {name}", xlabel="tokens of a prompt")
        panel.grid(False, axis="x")
    axes[0].set_ylabel("seconds")
    legend_above(made, axes, len(SOURCES))
    return made, (
        "SIMULATED by hand, not a run: cluster B's 100 Gbps NICs, instances on nodes of their own; "
        "prompts one after the other."
    )


def measured(model: str, prompt_tokens: int, source: str) -> dict[str, float]:
    """With a load from `source`: its time, and the P99 of gaps to second tokens meanwhile."""
    nodes = replace(
        hardware("a100pcie_x16"), num_devices=3, devices_per_node=1, devices_per_domain=1,
        devices_per_leaf=3,
    )  # fmt: skip
    engine = build(plain(compose("config", overrides=["engine=sim"]).engine), "engine")
    with testbed.start(spec(model), nodes, engine, 3, resident={2: range(0)}) as bed:
        load_s = bed.run(story(bed, prompt_tokens, source))
        times_s = [bed.recorder.records[r.request_id].token_times_s() for r in bed.requests]
    gaps_s = [float(second - first) for first, second in times_s]
    return {"load (s)": load_s, "P99 TBT (s)": float(np.percentile(gaps_s, 99))}


async def story(bed: Bed, prompt_tokens: int, source: str) -> float:
    """Prompts, as long as the load takes."""
    computing, decoding, new = bed.instances
    layers = range(bed.model.num_layers)
    load = bed.loop.spawn(
        new.load(layers, computing if source == "prefill" else decoding), name="load"
    )

    async def hand_over(request: Request, before: Sequence[Task]) -> None:
        await bed.cluster.move_kv([request], layers, computing, decoding)
        for task in before:  # one step at a time
            await bed.loop.wait(task.finished)
        await decode(decoding, [request], max_steps=1)

    sent: list[Task] = []
    while not load.done:
        request = bed.request(prompt_tokens, 2)
        await prefill(computing, [request])
        sent.append(bed.loop.spawn(hand_over(request, sent[-1:]), name="KV"))
    for task in sent:
        await bed.loop.wait(task.finished)
    (event,) = [e for e in bed.recorder.events if e["kind"] == "load"]
    return float(event["end_s"] - event["start_s"])
