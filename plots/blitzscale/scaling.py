"""Demand over time, and what host caches hold and miss: Figs. 1, 4 and 19, and by memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from harness.cost.profile import HardwareProfile
from plots.blitzscale.runs import (
    MEASURES,
    OVER_TIME_S,
    SHOWN_SEED,
    SYSTEMS,
    WORKLOADS,
    Floats,
    Run,
    from_ssd,
    over_time,
    runs,
    saved,
    since_the_run_began,
    table_of,
)
from plots.conf import hardware, spec
from plots.figure import Panels, Points, picture
from plots.panels import Look, curves, facets, lines
from plots.runs import held
from plots.style import PALETTE, log_scale
from systems.blitzscale.parameters import HostCache

BATCH_TOKENS = 2000  # tokens of the profiled prefill
STEADY = 0.05  # share of the window at either end that the lowest and highest of (c) leave out
CURVES = {"requests/s": "requests/s", "prefills needed": "instances", "KV (GB)": "GB"}  # and units


def _demand(run: Run) -> Iterator[dict[str, Any]]:
    model = spec("llama2-7b")
    prefill_s = HardwareProfile(hardware("a100pcie_x16")).prefill_s(model, BATCH_TOKENS)
    found = run.requests()
    rate = over_time(run.latencies.arrival)[1]
    arrivals = np.floor(found.arrival_s).astype(int)
    prompts = np.bincount(arrivals, found.prompt_tokens).astype(float)
    began = since_the_run_began(run.point).dropna(subset=["first_s"])
    tokens, _ = held(began, np.arange(len(rate)).astype(np.float64))
    kv = tokens * model.kv_bytes_per_token / 1e9
    inner = kv[int(len(rate) * STEADY) : int(len(rate) * (1 - STEADY))]
    engine, memory = run.config()["engine"], run.config()["hardware"]["memory_bytes"]
    room = engine["memory_utilization"] * memory - engine["activation_reserve_bytes"]
    room_gb = (room - model.weight_bytes) / 1e9
    for end, value in (("lowest", float(inner.min())), ("highest", float(inner.max()))):
        yield run.row(f"KV (GB), the {end}", value)
        yield run.row(f"KV over an instance's room for it, the {end}", value / room_gb)
    if run.seed == SHOWN_SEED:
        levels = (rate, prompts * prefill_s / BATCH_TOKENS, kv)
        for name, level in zip(CURVES, levels, strict=True):
            yield from run.curve(name, np.arange(len(level), dtype=float), level)


@picture(
    "blitzscale_fig01", table_of(_demand, ["vllm_full"]), ("blitzscale_fig24",), shape=(1, 3),
    size=(10, 3), quick="rows",
)  # fmt: skip
def fig01(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 1: BurstGPT's requests, the prefills that they need, and the KV of those that decode.
    (a) and (b) by arrival; (b) prompt tokens of a second over what one prefill makes, as profiled.
    (c) on Fig. 24's runs of vLLM on all GPUs: KV of what has its first token and not its last,
    which includes requests of the warm-up. Window and rate are ours and time is compressed: neither
    sizes nor growth within 2 s are the paper's."""
    for letter, (panel, mine, name) in zip("abc", facets(axes, rows, quantity=CURVES), strict=True):
        panel.plot(mine.x, mine.value, color=PALETTE[0])
        title = f"({letter}) {name.removesuffix(' (GB)')}"
        panel.set(title=title, xlabel="seconds", ylabel=CURVES[name], ylim=(0, None))
    return "BurstGPT 39 times as fast and upscaled, Llama2-7B, cluster B; seed 0."


SPARES = {"near": "beside a copy", "spread": "where most are free"}
BIN_S = 2.0


def _misses(run: Run) -> Iterator[dict[str, Any]]:
    found = run.loads()
    missed = found.source.str.startswith("ssd").to_numpy()
    spares = run.config()["system"]["spares"]
    share = missed.mean() if len(found) else np.nan
    yield from run.rows({"share of loads that miss": share, "loads": len(found)}, spares=spares)
    if run.workload == "burstgpt_models" and run.seed == SHOWN_SEED:
        bins = np.arange(0, found.start_s.max() + BIN_S, BIN_S)
        for name, start_s in (("scaled", found.start_s), ("missed", found.start_s[missed])):
            counts, _ = np.histogram(start_s, bins)
            curve = run.curve(name, bins[:-1], counts.astype(float))
            yield from (row | {"spares": spares} for row in curve)


@picture(
    "blitzscale_fig04", table_of(_misses, ["serverlessllm"]),
    ("blitzscale_models", "blitzscale_models_spread", "blitzscale_fig17", "blitzscale_fig17_cold"),
    shape=(1, 2), size=(9, 3.2), legend=2, quick="rows",
)  # fmt: skip
def fig04(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 4: instances that ServerlessLLM scales, and those that miss the host cache: eight models
    of 8B on four hosts, after a warm-up. A host misses a model that it has not had for the TTL.
    Which free GPU is taken is open in the paper: one on a host that has the model if there is one,
    or one on the host with the most free GPUs."""
    shown = rows[rows.workload == "burstgpt_models"]
    for panel, mine, spares in facets(axes, shown, spares=SPARES):
        for name, colour in (("scaled", "0.7"), ("missed", PALETTE[3])):
            bars = mine[mine.quantity == name]
            panel.bar(bars.x, bars.value, BIN_S, align="edge", color=colour, label=name)
        share = mine[mine.quantity == "share of loads that miss"].value.mean()
        panel.set_title(f"{SPARES[spares]}: {share:.0%} miss", fontsize=8)
        panel.set(xlabel="seconds", ylabel="instances in 2 s")
    one = rows[(rows.quantity == "share of loads that miss") & rows.workload.isin(list(WORKLOADS))]
    shares = one[one.system == "serverlessllm"].groupby("workload").value.mean()
    said = ", ".join(
        f"{title.partition(',')[0]} {shares[name]:.0%}" for name, title in WORKLOADS.items()
    )
    return (
        f"Eight models of 8B, BurstGPT, models drawn; seed {SHOWN_SEED}; titles: share of loads "
        f"that miss, all seeds. TTL 5 min. Of Fig. 17's one model: {said}."
    )


TTL_S = {"serverlessllm": 300.0, "serverlessllm_30s": 30.0, "blitzscale": 0.0}


def _cached(run: Run) -> Iterator[dict[str, Any]]:
    seconds, copies, serving, hosts = _host_copies(run)
    if run.system == "blitzscale":
        run.mechanism = float(len(run.events("host_copy")))
    over = copies[serving > 0].sum() / serving[serving > 0].sum()
    yield from run.rows(
        {"host copies, most": copies.max(), "host copies over hosts that serve": over}
    )
    if run.seed == SHOWN_SEED:
        step = int(OVER_TIME_S)
        yield from run.curve("host copies over hosts", seconds[::step], copies[::step] / hosts)


@picture(
    "blitzscale_fig19", table_of(_cached, TTL_S), ("blitzscale_fig17", "blitzscale_fig17_ttl"),
    shape=(1, 3), size=(9, 3.2), legend=3, quick="rows",
)  # fmt: skip
def fig19(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 19: host memory that holds parameters over time, in copies of the model over hosts.
    Derived from when instances held their slots, by each system's own rule: ServerlessLLM's host
    cache with its TTL (`HostCache`), BlitzScale's pool, which has one host copy while no GPU holds
    one."""
    looks = {name: SYSTEMS[name] for name in TTL_S}
    copies = rows[rows.quantity == "host copies over hosts"]
    for panel, mine, workload in facets(axes, copies, workload=WORKLOADS):
        curves(panel, mine, "x", "value", looks, drawstyle="steps-post")
        panel.set(title=WORKLOADS[workload], xlabel="seconds", ylim=(-0.03, 1.1))
    axes[0].set_ylabel("host copies / hosts")
    return f"Seed {SHOWN_SEED}. AllCache: 1 throughout. BlitzScale: a GPU always has a copy."


def _host_copies(run: Run) -> tuple[Floats, Floats, Floats, int]:
    """The whole seconds of a run; at each, the copies of the model in host memory and the hosts
    whose GPUs serve; and the number of hosts."""
    configured = run.config()
    per_host = configured["hardware"]["devices_per_node"]
    hosts = configured["hardware"]["num_devices"] // per_host
    slots = run.slots().query("role != 'loading'")
    first_gpu = slots.instance.str.rpartition("-")[2].astype(int) * configured["model"]["tp"]
    nodes = (first_gpu // per_host).to_numpy()
    changes = sorted(
        [(start, 1, node) for start, node in zip(slots.start_s, nodes, strict=True)]
        + [(end, -1, node) for end, node in zip(slots.end_s, nodes, strict=True)]
    )
    cache, serving = HostCache(TTL_S[run.system]), dict.fromkeys(range(hosts), 0)
    seconds = np.arange(np.floor(slots.start_s.min()), np.ceil(slots.end_s.max()))
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
    counts = seconds >= 0
    return seconds[counts], copies[counts], busy[counts], hosts


MODELS = 8  # of the runs
PUBLISHED = (20, 46)  # % of loads that miss
GIVE, KEEP = "idle models give GPUs back", "idle models keep GPUs"
CACHED = {
    f"serverlessllm, {GIVE}": Look(f"S-LLM, {GIVE}", PALETTE[3], "o"),
    f"serverlessllm, {KEEP}": Look(f"S-LLM, {KEEP}", PALETTE[1], "s"),
    f"blitzscale, {GIVE}": Look(f"BlitzScale, {GIVE}", PALETTE[0], "^"),
}


def memory(points: Points) -> pd.DataFrame:
    """Rows have `fits`, how many of the models a host's memory has room for, and `idle`."""
    rows: list[dict[str, Any]] = []
    for (fits, idle), group in groupby(sorted(runs(points), key=_key), _key):
        together, about = list(group), {"fits": fits, "idle": idle}
        made = list(saved(together, "serverlessllm", quantities=["mean TTFT"]))
        for run in together:
            values = {"share of loads that miss": from_ssd(run), "loads": len(run.loads())}
            values["mean TTFT"] = MEASURES["mean TTFT"](run)
            made += run.rows(values, config_hash=run.point.config_hash())
        rows += [row | about | {"series": f"{row['system']}, {idle}"} for row in made]
    return pd.DataFrame(rows)


def _key(run: Run) -> tuple[int, str]:
    config = run.config()
    room = config["hardware"]["host_memory_bytes"] // spec("llama3-8b").weight_bytes
    return min(MODELS, int(room)), KEEP if config["system"]["min_prefills"] else GIVE


@picture(
    "blitzscale_memory", memory,
    (
        "blitzscale_memory", "blitzscale_memory_blitzscale", "blitzscale_memory_kept",
        "blitzscale_models",
    ),
    shape=(1, 2), size=(9, 3.6), legend=3, quick=False,
)  # fmt: skip
def by_memory(axes: Panels, rows: pd.DataFrame) -> str:
    """Section 3: "the scarce host memory cannot support the caching all models". Eight models of 8B
    on four hosts, after a warm-up. A host misses a model that it has not had for the TTL, or that
    its memory has no room for. Shaded: the paper's Fig. 4. BlitzScale needs one copy of each model
    in the cluster, which is two models a host, and refuses to serve with less."""
    shown = {"share of loads that miss": (100, "% of loads from SSD"), "mean TTFT": (1, "s")}
    for panel, mine, quantity in facets(axes, rows, quantity=shown):
        factor, unit = shown[quantity]
        lines(panel, mine, "fits", "value", CACHED, by="series", factor=factor)
        log_scale(panel, "x")
        panel.set_xticks([1, 2, 4, MODELS], ["1", "2", "4", "8"])
        panel.minorticks_off()
        panel.set(title=quantity, xlabel="models of 8 that a host's memory fits", ylabel=unit)
    axes[0].axhspan(*PUBLISHED, color="0.9", zorder=0)
    axes[1].set_ylim(0, None)
    return (
        "Eight models of 8B, BurstGPT, models drawn, TTL 5 min. Mean and range of seeds; shaded: "
        "the paper."
    )
