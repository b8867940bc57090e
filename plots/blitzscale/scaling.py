"""Single scale-ups and what they cost: Figs. 1, 4, 19, 21 and 23."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from harness.cost.profile import HardwareProfile
from harness.records.device_events import covered_s
from plots.blitzscale.runs import (
    OVER_TIME_S,
    SYSTEMS,
    WORKLOADS,
    Floats,
    Run,
    over_time,
    runs,
    table_of,
)
from plots.conf import hardware, spec
from plots.figure import Panels, Points, picture
from plots.style import PALETTE
from systems.blitzscale.ilp import ilp
from systems.blitzscale.parameters import HostCache
from systems.blitzscale.timeline import PairTimes

SHOWN_SEED = 0  # the seed of what is drawn over time
BATCH_TOKENS = 2000  # tokens of the profiled prefill
STEADY = 0.05  # share of a run at either end, with few requests: left out in (c)
CURVES = {"requests/s": "requests/s", "prefills needed": "instances", "KV (GB)": "GB"}  # and units


def _demand(run: Run) -> Iterator[dict[str, Any]]:
    model = spec("llama2-7b")
    prefill_s = HardwareProfile(hardware("a100pcie_x16")).prefill_s(model, BATCH_TOKENS)
    found = run.requests()
    rate = over_time(run.latencies.arrival)[1]
    arrivals = np.floor(found.arrival_s).astype(int)
    prompts = np.bincount(arrivals, found.prompt_tokens).astype(float)
    kv = _kv_tokens(found.dropna(subset=["first_s"])) * model.kv_bytes_per_token / 1e9
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
    size=(11, 3),
)  # fmt: skip
def fig01(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 1: BurstGPT's requests, the prefills that they need, and the KV of those that decode.
    (a) and (b) by arrival; (b) prompt tokens of a second over what one prefill makes, as profiled.
    (c) on Fig. 24's runs of vLLM on all GPUs: KV of what has its first token and not its last.
    Window and rate are ours and time is compressed: neither sizes nor growth within 2 s are the
    paper's."""
    for panel, letter, (name, unit) in zip(axes, "abc", CURVES.items(), strict=True):
        shown = rows[rows.quantity == name]
        panel.plot(shown.x, shown.value, color=PALETTE[0])
        title = f"({letter}) {name.removesuffix(' (GB)')}"
        panel.set(title=title, xlabel="seconds", ylabel=unit, ylim=(0, None))
    return "BurstGPT 39 times as fast and upscaled, Llama2-7B, cluster B; seed 0."


def _kv_tokens(answered: pd.DataFrame) -> Floats:
    """Tokens whose KV is in memory at the beginning of each second, of requests that decode."""
    at = np.arange(int(np.ceil(answered.last_s.max())) + 1, dtype=float)
    total = np.zeros(len(at))
    for prompt, times in zip(answered.prompt_tokens, answered.token_times_s, strict=True):
        begun = np.searchsorted(times, at, side="right")
        total += np.where((begun > 0) & (at < times[-1]), prompt + begun, 0)
    return total


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
    shape=(1, 2), size=(9, 3.2), legend=2,
)  # fmt: skip
def fig04(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 4: instances that ServerlessLLM scales, and those that miss the host cache: eight models
    of 8B on four hosts, after a warm-up. A host misses a model that it has not had for the TTL.
    Which free GPU is taken is open in the paper: one on a host that has the model if there is one,
    or one on the host with the most free GPUs."""
    shown = rows[rows.workload == "burstgpt_models"]
    for panel, spares in zip(axes, SPARES, strict=True):
        mine = shown[shown.spares == spares]
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
WIDTHS = {"serverlessllm": 3.2, "serverlessllm_30s": 1.4, "blitzscale": 1.4}


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
    shape=(1, 3), size=(9, 3.2), legend=3,
)  # fmt: skip
def fig19(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 19: host memory that holds parameters over time, in copies of the model over hosts.
    Derived from when instances held their slots, by each system's own rule: ServerlessLLM's host
    cache with its TTL (`HostCache`), BlitzScale's pool, which has one host copy while no GPU holds
    one."""
    curves = rows[rows.quantity == "host copies over hosts"]
    for panel, (workload, title) in zip(axes, WORKLOADS.items(), strict=True):
        for system, width in WIDTHS.items():
            shown = curves[(curves.workload == workload) & (curves.system == system)]
            panel.step(shown.x, shown.value, where="post", lw=width, **SYSTEMS[system].curve)
        panel.set(title=title, xlabel="seconds", ylim=(-0.03, 1.1))
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


STEP_S, SHOWN_S = {"sim": 0.1, "torch": 0.25}, {"sim": 4.0, "torch": 5.0}
BESIDE = ("allcache", "network", "blitzscale")
TOKENS, THERE, LOADED = "prompt tokens/s", "share of the parameters there", "all are loaded"


def _live(run: Run) -> Iterator[dict[str, Any]]:
    """Yields what happens around the loads of a run. Times are seconds from the start of the first
    load."""
    begun = run.loads()
    zero_s = begun.start_s.min()
    loaded_s = begun.groupby("instance").end_s.max() - zero_s
    sent = run.requests()
    first_s = sent.first_s - zero_s
    # First tokens of requests that an instance still loading had a part in.
    ups = run.scale_ups()
    served_s = first_s[sent.request_id.isin(ups.served.explode())]
    by_request = sent.set_index("request_id").first_s
    shares = [
        (by_request[served].min() - start_s) / (end_s - start_s)
        for served, start_s, end_s in ups[["served", "start_s", "end_s"]].to_numpy()
        if served
    ]
    senders = set(begun.source) - set(loaded_s.index)
    engine = run.point.manifest()["engine_name"]
    yield from run.rows({
        "instances": len(loaded_s), LOADED: loaded_s.max(), "first is loaded": loaded_s.min(),
        "first token with a part on an instance that loads": served_s.min(),
        "first token over the load of its own instance, the latest": max(shares, default=np.nan),
        "sources that load nothing": len(senders),
    }, engine=engine)  # fmt: skip
    if run.seed == SHOWN_SEED:
        edges = np.arange(0, SHOWN_S[engine] + STEP_S[engine], STEP_S[engine])
        tokens, _ = np.histogram(first_s, edges, weights=sent.prompt_tokens)
        moves = run.events("transfer").query("purpose == 'weights' and complete")
        moves = moves.sort_values("end_s")
        there = moves.bytes.cumsum() / moves.bytes.sum()
        curves = run.curve(TOKENS, edges[:-1], tokens / STEP_S[engine])
        curves += run.curve(THERE, moves.end_s.to_numpy() - zero_s, there.to_numpy())
        yield from (each | {"engine": engine} for each in curves)


@picture(
    "blitzscale_fig21",
    table_of(_live),
    ("blitzscale_fig21",),
    shape=(1, 2),
    size=(9, 3.2),
    legend=2,
)
def fig21(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 21: prompt tokens prefilled while six instances of 24B load, and what of their
    parameters is there. Time runs from when the first of them begins to load. Live, as in section
    5.2, tokens come before the last layer has."""
    _tokens_and_layers(axes, rows, "sim")
    return (
        "Mistral-24B, TP 2, AzureConv's lengths, arrivals drawn. Lines: seed "
        f"{SHOWN_SEED}. Dotted: all are loaded."
    )


@picture(
    "blitzscale_fig21_live", table_of(_live), ("blitzscale_fig21_live",), shape=(1, 2),
    size=(9, 3.2), legend=3,
)  # fmt: skip
def fig21_live(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 21 measured: two worker processes of this machine load beside two that serve."""
    _tokens_and_layers(axes, rows, "torch")
    return (
        "A random-weight model on paced workers, a quarter of AzureConv's lengths, arrivals drawn. "
        f"Lines: seed {SHOWN_SEED}. Dotted: all are loaded."
    )


def _tokens_and_layers(axes: Panels, rows: pd.DataFrame, engine: str) -> None:
    for system in BESIDE:
        look, mine = SYSTEMS[system], rows[rows.system == system]
        loaded_s = mine[(mine.quantity == LOADED) & (mine.seed == SHOWN_SEED)].value
        for panel, name, style in zip(
            axes, (TOKENS, THERE), ("default", "steps-post"), strict=True
        ):
            shown = mine[mine.quantity == name]
            if len(shown):
                panel.plot(shown.x, shown.value, drawstyle=style, **look.curve)
            for end_s in loaded_s:
                panel.axvline(end_s, color=look.colour, lw=0.8, ls=":")
    axes[0].set(title="prefilled", ylabel=TOKENS)
    axes[1].set(title="parameters of all there", ylabel="share", ylim=(0, 1.03))
    for panel in axes:
        panel.set(xlim=(0, SHOWN_S[engine]), xlabel="seconds since loading began")


LAYERS_8B, LOAD, BATCHES, REPEATS = 32, 6.0, 12, 9  # §5.2: layers; Fig. 15's load; "a dozen"
TIMES = 3  # how often the solver is measured
PLANES = {"data plane (s)": PALETTE[1], "control plane (s)": PALETTE[3]}


def control(points: Points) -> pd.DataFrame:
    rows = [row for run in runs(points) for row in run.rows(_planes(run))]
    solver = {"system": "solver", "inputs": "measured", "quantity": "solving the program, 8B (s)"}
    solved = [solver | {"seed": seed, "value": _solving_s()} for seed in range(TIMES)]
    return pd.DataFrame([*rows, *solved])


@picture("blitzscale_fig23", control, ("blitzscale_fig21_live",), size=(5, 3), legend=len(PLANES))
def fig23(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 23: how much of a scale-up is control plane, measured on paced worker processes.

    A scale-up lasts from the monitor's decision (the slot is taken) to when the instance serves.
    Data plane: the time in which bytes of parameters are on their way to it. Control plane: the
    rest: plans, commands and their answers, and a chain's wait for its first layer. Worker
    processes exist from the start, as the paper's pool of CUDA contexts does (A.1), so that none is
    begun. Links are slowed as in Fig. 21: the share depends on that, the control plane's seconds
    hardly do.

    Beside it the wall time of solving the integer program (§5.2) on the machine that draws this.
    The paper compares with vLLM, whose numbers its text does not have."""
    names = [name for name in SYSTEMS if name in set(rows.system)]
    below = np.zeros(len(names))
    for plane, colour in PLANES.items():
        means = rows[rows.quantity == plane].groupby("system").value.mean()
        values = means.loc[names].to_numpy()
        axes[0].bar(range(len(names)), values, 0.6, below, color=colour, label=plane)
        below = below + values
    axes[0].set_xticks(range(len(names)), [SYSTEMS[name].label for name in names])
    axes[0].set_ylabel("seconds, mean of scale-ups")
    axes[0].grid(False, axis="x")
    return "Links slowed as in Fig. 21; a random-weight model."


def _planes(run: Run) -> dict[str, float]:
    """Mean times of a run's scale-ups in the data plane and the control plane; the share is of
    their sums."""
    slots = run.scale_ups()
    moves = run.events("transfer").query("purpose == 'weights'")
    data_s: list[float] = []
    for name, start_s, end_s in slots[["instance", "start_s", "end_s"]].to_numpy():
        mine = moves[(moves.instance == name) & (moves.end_s > start_s) & (moves.start_s < end_s)]
        data_s.append(covered_s(mine.to_dict("records")))
    every_s = [float(length_s) for length_s in slots.end_s - slots.start_s]
    return {
        "scale-ups": float(len(every_s)),
        "data plane (s)": float(np.mean(data_s)),
        "control plane (s)": float(np.mean(every_s) - np.mean(data_s)),
        "share of a scale-up that is control plane": 1 - float(sum(data_s) / sum(every_s)),
    }


def _solving_s() -> float:
    """Seconds to solve the integer program of 8B's layers and a dozen batches: the median of its
    repeats, wall time."""
    ready_s = tuple(LOAD * layer for layer in range(LAYERS_8B))
    pair = PairTimes(num_layers=LAYERS_8B, layer_s=(1.0,) * BATCHES, ready_s=ready_s)
    times_s = []
    for _ in range(REPEATS):
        begun_s = perf_counter()
        ilp(pair)
        times_s.append(perf_counter() - begun_s)
    return float(np.median(times_s))
