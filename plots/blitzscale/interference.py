"""Fig. 8: a new instance loads from a prefill, whose KV leaves by the same NIC, or from the decode,
whose NIC only receives; simulated with the paper's models, and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from hydra import compose

from harness.clock import Task
from harness.configuration.config import build
from harness.configuration.options import plain
from harness.request import Request
from harness.running import testbed
from harness.running.testbed import Bed, decode, prefill
from plots.blitzscale.runs import Run, runs
from plots.conf import hardware, spec
from plots.figure import Panels, Points, picture
from plots.panels import Look, bars, facets
from plots.style import PALETTE

MODELS = {"llama3-8b": "Llama3-8B", "llama2-7b": "Llama2-7B"}
SOURCES = {
    "decode": Look("from a decode", PALETTE[0]), "prefill": Look("from a prefill", PALETTE[9]),
}  # fmt: skip
PROMPT_TOKENS = (500, 1000, 2000, 4000)
SHOWN = ("load (s)", "P99 TBT (s)")


def by_hand(points: Points) -> pd.DataFrame:
    rows = []
    for model, tokens in product(MODELS, PROMPT_TOKENS):
        about = {"model": model, "prompt_tokens": tokens, "inputs": "drawn"}
        found = {source: _simulated(model, tokens, source) for source in SOURCES}
        rows += [
            about | {"source": source, "quantity": name, "value": value}
            for source, values in found.items()
            for name, value in values.items()
        ]
        for name in SHOWN:
            ratio = found["prefill"][name] / found["decode"][name]
            over = f"{name.removesuffix(' (s)')} from a prefill over from the decode"
            rows.append(about | {"quantity": over, "value": ratio})
            rows.append(about | {"quantity": f"{over}, less one", "value": ratio - 1})
    return pd.DataFrame(rows)


@picture("blitzscale_fig08", by_hand, shape=(1, 4), size=(12, 3), legend=len(SOURCES))
def fig08(axes: Panels, rows: pd.DataFrame) -> str:
    """Three instances on nodes of their own, simulated on cluster B's NICs: a prefill computes
    prompts one after the other, their KV goes to a decode, which makes one token more of each; a
    third instance loads meanwhile. The length of prompts and the model say how much of the NIC the
    KV takes; the paper's are not known. TBT: from a prompt's first token to its second."""
    for panel, mine, model, name in facets(axes, rows, model=MODELS, quantity=SHOWN):
        bars(panel, mine, "prompt_tokens", "value", SOURCES, by="source")
        panel.set(title=f"{MODELS[model]}: {name}", xlabel="tokens of a prompt")
    axes[0].set_ylabel("seconds")
    return (
        "SIMULATED by hand, not a run: cluster B's 100 Gbps NICs, instances on nodes of their own; "
        "prompts one after the other."
    )


def _simulated(model: str, prompt_tokens: int, source: str) -> dict[str, float]:
    """Simulates a load from `source`: its time, and the P99 of gaps to second tokens meanwhile."""
    nodes = replace(
        hardware("a100pcie_x16"), num_devices=3, devices_per_node=1, devices_per_domain=1,
        devices_per_leaf=3,
    )  # fmt: skip
    engine = build(plain(compose("config", overrides=["engine=sim"]).engine), "engine")
    with testbed.start(spec(model), nodes, engine, 3, resident={2: range(0)}) as bed:
        load_s = bed.run(_story(bed, prompt_tokens, source))
        times_s = [bed.recorder.records[r.request_id].token_times_s() for r in bed.requests]
    gaps_s = [float(second - first) for first, second in times_s]
    return {"load (s)": load_s, "P99 TBT (s)": float(np.percentile(gaps_s, 99))}


async def _story(bed: Bed, prompt_tokens: int, source: str) -> float:
    """Runs prompts for as long as the load takes, and returns the load's seconds."""
    computing, decoding, new = bed.instances
    layers = range(bed.model.num_layers)
    sender = computing if source == "prefill" else decoding
    load = bed.loop.spawn(new.load(layers, sender), name="load")

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


BY_PRUNING = {"true": "decode", "false": "prefill"}  # the source of loads


def live(points: Points) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for run in runs(points):
        pruning = run.point.overrides["system.pruning"].lower()
        about = {
            "source": BY_PRUNING[pruning], "pruning": pruning, "seed": run.seed,
            "valid": run.valid, "mechanism": run.mechanism,
        }  # fmt: skip
        values = _measured(run, BY_PRUNING[pruning])
        rows += [about | {"quantity": name, "value": value} for name, value in values.items()]
    found = pd.DataFrame(rows)
    return pd.concat([found, _over(found)], ignore_index=True)


@picture("blitzscale_fig08_live", live, ("blitzscale_fig08_live",), shape=(1, 2), size=(6, 3))
def fig08_live(axes: Panels, rows: pd.DataFrame) -> str:
    """The running system on paced worker processes of this machine; `system.pruning=false` makes
    the naive choice of Fig. 7 (b). TBT: from a request's first token to its second, between which
    its KV moves; of those whose first token came while the instance was loading."""
    for panel, name in zip(axes, SHOWN, strict=True):
        for at, source in enumerate(SOURCES):
            values = rows[(rows.quantity == name) & (rows.source == source)].value
            panel.bar(at, values.mean(), 0.6, color=SOURCES[source].colour)
            panel.plot([at] * len(values), values, "k.")
        panel.set_xticks(range(len(SOURCES)), [f"from the {each}" for each in SOURCES])
        panel.set(title=name.removesuffix(" (s)"), ylabel="seconds")
        panel.grid(False, axis="x")
    return "A random-weight model, paced workers. Bars: mean of seeds (dots)."


def _measured(run: Run, source: str) -> dict[str, float]:
    """What the run's first load took, with the P99 of gaps to second tokens meanwhile. Raises
    ValueError if it was not from `source`."""
    first = run.loads().sort_values("start_s").iloc[0]
    if not str(first.source).endswith({"decode": "-1", "prefill": "-0"}[source]):
        raise ValueError(f"{run.point.folder}: loads from {first.source}, not from the {source}")
    found = run.requests()
    meanwhile = found[found.first_s.between(first.start_s, first.end_s)]
    gaps_s = (meanwhile.token_times_s.str[1] - meanwhile.first_s).dropna()
    return {
        "load (s)": float(first.end_s - first.start_s),
        "P99 TBT (s)": float(np.percentile(gaps_s, 99)),
        "requests meanwhile": float(len(gaps_s)),
    }


def _over(rows: pd.DataFrame) -> pd.DataFrame:
    """Ratios of what loads from a prefill give to what loads from the decode give, seed by seed:
    both have the same schedule."""
    shown = rows[rows.quantity.isin(SHOWN)]
    wide = shown.pivot(index=["quantity", "seed"], columns="source", values="value").dropna()
    ratio = (wide.prefill / wide.decode).reset_index(name="value")
    ratio["quantity"] = ratio.quantity.str.removesuffix(" (s)") + " over from the decode"
    less = ratio.assign(quantity=ratio.quantity + ", less one", value=ratio.value - 1)
    return pd.concat([ratio, less]).assign(source="prefill")
