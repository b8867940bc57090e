"""The paper's numbers that need no run: arithmetic on models and links, and our planner's plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.cost.profile import HardwareProfile
from harness.experiments.points import Point
from plots.conf import hardware, spec
from plots.style import text_table
from systems.blitzscale.chains import Medium, Source, Target, arrivals_s, finish_s
from systems.blitzscale.fabric import Device, Fabric, fabric_of
from systems.blitzscale.planner import plan
from systems.blitzscale.pool import GpuCopy, ParameterPool
from systems.blitzscale.schedulers import ilp_free
from systems.blitzscale.timeline import PairTimes, replay

EXPERIMENTS: tuple[str, ...] = ()
GBPS = 1e9 / 8  # bytes/s
EXAMPLE_LAYERS = 7  # §4
BATCH_TOKENS = 2000  # §5.2


def table(points: Sequence[Point]) -> pd.DataFrame:
    """`inputs`: of which numbers each is made (`harness.claims.kinds`)."""
    values = loading() | throughput() | paired() | chains() | pool()
    inputs = dict.fromkeys(values, "ours") | dict.fromkeys([*throughput(), *paired()], "paper")
    inputs |= dict.fromkeys(list(loading())[:2], "paper") | {list(pool())[1]: "drawn"}
    return pd.DataFrame([
        {"quantity": name, "value": value, "inputs": inputs[name]} for name, value in values.items()
    ])  # fmt: skip


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    columns = rows[["quantity", "value", "inputs"]].to_numpy()
    cells = [[quantity, f"{value:.4g}", inputs] for quantity, value, inputs in columns]
    return text_table(cells, ["", "value", "numbers"]), (
        "Arithmetic and our planner on nominal rates; nothing was run. Numbers: whose they are, or "
        "drawn at random."
    )


def loading() -> dict[str, float]:
    small, large, llama2 = spec("llama3-8b"), spec("qwen2.5-72b"), spec("llama2-7b")
    a800 = hardware("a800x32")
    profile = HardwareProfile(a800)
    layer_s = profile.prefill_s(llama2, BATCH_TOKENS) / llama2.num_layers
    return {
        "loading 8B from SSD at 10 Gbps (s)": small.weight_bytes / a800.ssd_bytes_per_s,
        "Gbps a GPU for 72B over four in 500 ms": large.weight_bytes / 4 / 0.5 / GBPS,
        "layers of 72B": float(large.num_layers),
        "load of a layer over its computation (Llama2-7B, 2,000 tokens, 200 Gbps, A800)": (
            llama2.layer_bytes / (200 * GBPS) / layer_s
        ),
        "prefill of 1,000 tokens, 8B on an A800 (s)": profile.prefill_s(small, 1000),
        "prefill of 8,192 tokens, 8B on an A800 (s)": profile.prefill_s(small, 8192),
    }


def throughput() -> dict[str, float]:
    """§4: batches a layer time, with 0, 1 and half of the layers on a second instance."""

    def rate(on_target: int, layers: int) -> float:
        many = 50
        pair = PairTimes(num_layers=layers, layer_s=(1.0,) * many, ready_s=(0.0,) * layers)
        ends = replay(pair, [on_target] * many).ends_s
        return (many - 1) / (ends[-1] - ends[0])

    return {
        "batches a layer time, 7 layers alone": rate(0, EXAMPLE_LAYERS),
        "the same with one layer on a second instance": rate(1, EXAMPLE_LAYERS),
        "throughput with half of 8 layers there, over alone": rate(4, 8) / rate(0, 8),
    }


def paired() -> dict[str, float]:
    """§5.2: batches that end while 8B's 32 layers load, each as long as six are computed."""
    layers, load = 32, 6.0
    ready_s = tuple(load * layer for layer in range(layers))
    pair = PairTimes(num_layers=layers, layer_s=(1.0,) * 50, ready_s=ready_s)
    ends_s = replay(pair, ilp_free(pair)).ends_s
    return {
        "batches that a pair ends while 32 layers load": float(
            sum(end_s <= ready_s[-1] for end_s in ends_s)
        )
    }


def chains() -> dict[str, float]:
    model = spec("llama3-8b")
    layers = [float(model.layer_bytes)] * model.num_layers
    one, four = arrivals_s([1.0] * 4, [1.0] * model.num_layers)[::3]
    fast_first, slow_first = (arrivals_s(rates, [1.0] * 32) for rates in ([2.0, 1.0], [1.0, 2.0]))
    a800 = fabric_of(hardware("a800x32"))
    inside = plan(
        a800, [Source(medium=Medium.GPU, node=0, devices=(0,))],
        [Target(name=str(i), devices=(i,)) for i in range(1, 8)], layers,
    )  # fmt: skip
    return {
        "time of a chain to four over one, 32 layers": four[-1] / one[-1],
        "downtime of the target that is reached twice as fast, first over second": (
            fast_first[0][-1] / slow_first[1][-1]
        ),
        "four GPUs to four over one to one": _to_wide(4) / _to_wide(1),
        "8B from a GPU to the seven others of its node over NVLink (s)": max(
            finish_s(chain, layers)[-1] for chain in inside.chains
        ),
    }


def _to_wide(width: int) -> float:
    """A domain of `width` GPUs, each with a copy, to another one: Fig. 14."""
    devices = (
        Device(index=i, node=i // width, domain=i // width, leaf=0) for i in range(2 * width)
    )
    fabric = Fabric(
        devices=tuple(devices), nvlink_bytes_per_s=1e6, peer_bytes_per_s=1.0, nic_bytes_per_s=1.0,
        pcie_bytes_per_s=1.0, ssd_bytes_per_s=0.1,
    )  # fmt: skip
    sources = [Source(medium=Medium.GPU, node=0, devices=(i,)) for i in range(width)]
    targets = [Target(name=str(i), devices=(i,)) for i in range(width, 2 * width)]
    found = plan(fabric, sources, targets, [1.0] * 32)
    return max(finish_s(chain, [1.0] * 32)[-1] for chain in found.chains)


def pool() -> dict[str, float]:
    """§5.3, A.1: copies of each of eight models on four hosts, as instances come and go by chance
    and a host with its GPUs fails."""
    rng = np.random.default_rng(0)
    models = {f"m{i}": 1 for i in range(8)}
    running: dict[str, GpuCopy] = {}

    def running_copies(model: str) -> list[GpuCopy]:
        return [copy for name, copy in running.items() if name.partition(" ")[0] == model]

    found = ParameterPool(models, range(4), 100, running_copies)
    at_first = [sum(name == model for name in found.host_copies) for model in models]
    fewest = min(at_first)
    for step in range(2000):
        model = str(rng.choice(list(models)))
        name = f"{model} on {rng.integers(4 if step < 1000 else 3)}"
        if name not in running:
            running[name] = GpuCopy(name=name, node=int(name[-1]), devices=(int(name[-1]),))
        else:
            running[name] = replace(running[name], stays=False)
            copy_all(found)
            if found.may_reclaim(model, name):
                del running[name]
        if step == 1000:
            for name in [name for name, copy in running.items() if copy.node == 3]:
                del running[name]
            found.failed(3)
        copy_all(found)
        copies = {each: int(each in found.host_copies) for each in models}
        for each in running:
            copies[each.partition(" ")[0]] += 1
        fewest = min(fewest, *copies.values())
    return {
        "host copies of a model at first": float(max(at_first)),
        "fewest copies of a model as instances come and go and a host fails": float(fewest),
    }


def copy_all(pool: ParameterPool) -> None:
    """Has all copies that are wanted be made and those that are not be dropped."""
    for model in pool.surplus():
        pool.dropped(model)
    for copy in pool.wanted():
        pool.copied(copy.model)
