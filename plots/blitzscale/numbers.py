"""The paper's numbers that need no run: arithmetic on models and links, and our planner's plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from harness.cost.profile import HardwareProfile
from plots.blitzscale.plans import EXAMPLE_LAYERS, LAYERS, domain_to_domain, fabric, pair
from plots.conf import hardware, spec
from plots.figure import Panels, Points, Words, picture, text
from plots.panels import Look, bars
from plots.style import PALETTE, log_scale
from systems.blitzscale.chains import Medium, Plan, Source, Target, arrivals_s, expected_s, finish_s
from systems.blitzscale.fabric import fabric_of
from systems.blitzscale.planner import plan
from systems.blitzscale.pool import GpuCopy, ParameterPool
from systems.blitzscale.schedulers import ilp_free
from systems.blitzscale.timeline import replay

GBPS = 1e9 / 8  # bytes/s
BATCH_TOKENS = 2000  # §5.2
CLUSTERS = {"A": "a800x32", "B": "a100pcie_x16"}
PUBLISHED = {  # Table 1, Gbps a GPU: intra-host, inter-host, host to GPU, SSD to GPU
    "A": (1600, 100, 128, 10),
    "B": (256, 100, 128, 10),
}
LINKS = ("GPU to GPU, one host", "GPU to GPU, two hosts", "host to GPU", "SSD to GPU")
VENDORS = {  # Table 2: local SSD, network, Gbps a GPU
    "a2-ultragpu-8g": (2.58, 12.5), "p4d.24xlarge": (2.31, 100), "ml.hpcpni2.28xlarge": (4, 100),
    "p4de.24xlarge": (2.31, 100), "a3-highgpu-8g": (6.09, 100), "a3-megagpu-8g": (6.09, 200),
    "p5.48xlarge": (9.8, 400),
}  # fmt: skip


def links(points: Points) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for cluster, name in CLUSTERS.items():
        found = hardware(name)
        inside = found.nvlink_copy_bytes_per_s or found.peer_bytes_per_s or found.pcie_bytes_per_s
        ours = (inside, found.nic_bytes_per_s, found.pcie_bytes_per_s, found.ssd_bytes_per_s)
        rows += [
            {"where": f"cluster {cluster}", "link": link, "ours": rate / GBPS,
             "published": published, "inputs": "ours"}
            for link, rate, published in zip(LINKS, ours, PUBLISHED[cluster], strict=True)
        ]  # fmt: skip
    rows += [
        {"where": name, "link": link, "published": gbps, "inputs": "paper"}
        for name, rates in VENDORS.items()
        for link, gbps in zip(("SSD to GPU", "network"), rates, strict=True)
    ]
    made = pd.DataFrame(rows)
    gbps = made.ours.fillna(made.published)
    return made.assign(load_s=spec("llama3-8b").weight_bytes / GBPS / gbps)


@text(
    "blitzscale_table1", links,
    head=["", "link", "paper (Gbps a GPU)", "our profile", "8B loads in (s)"],
)  # fmt: skip
def table1(rows: pd.DataFrame) -> tuple[Words, str]:
    """Tables 1 and 2, and Fig. 5: the links of both clusters as our profiles have them, and of
    vendors. Table 2 is the paper's. Beside each link: how long Llama3-8B takes over it."""
    columns = rows[["where", "link", "published", "ours", "load_s"]].to_numpy()
    cells = [
        [where, link, f"{paper:g}", "" if np.isnan(ours) else f"{ours:.4g}", f"{load_s:.3g}"]
        for where, link, paper, ours, load_s in columns
    ]
    return cells, (
        "Tables 1 and 2. 8B loads at our profile's rate, else at the paper's. Nothing was run."
    )


SHOWN = {"cluster A": Look("cluster A", PALETTE[0]), "cluster B": Look("cluster B", PALETTE[9])}


@picture("blitzscale_fig05", links, size=(7, 3), legend=2)
def fig05(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 5: the rates of a GPU's links, as our profiles have them. The paper has an RDMA of 200
    and a PCIe of 256 Gbps there, which Table 1's clusters do not have."""
    groups = {link: link.replace(", ", ",\n") for link in LINKS}
    bars(axes[0], rows.dropna(subset=["ours"]), "link", "ours", SHOWN, by="where", groups=groups)
    log_scale(axes[0], "y")
    axes[0].set_ylabel("Gbps a GPU")
    return "Our profiles of Table 1's clusters, nothing was run."


def computed(points: Points) -> pd.DataFrame:
    """`inputs`: of which numbers each is made (`harness.claims.kinds`)."""
    values = loading() | throughput() | paired() | chains() | pool()
    inputs = dict.fromkeys(values, "ours") | dict.fromkeys([*throughput(), *paired()], "paper")
    inputs |= dict.fromkeys(list(loading())[:2], "paper") | {list(pool())[1]: "drawn"}
    return pd.DataFrame([
        {"quantity": name, "value": value, "inputs": inputs[name]} for name, value in values.items()
    ])  # fmt: skip


@text("blitzscale_table_numbers", computed, head=["", "value", "numbers"])
def table_numbers(rows: pd.DataFrame) -> tuple[Words, str]:
    columns = rows[["quantity", "value", "inputs"]].to_numpy()
    return [[quantity, f"{value:.4g}", inputs] for quantity, value, inputs in columns], (
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
        ends = replay(pair(layers, many, 0.0), [on_target] * many).ends_s
        return (many - 1) / (ends[-1] - ends[0])

    return {
        "batches a layer time, 7 layers alone": rate(0, EXAMPLE_LAYERS),
        "the same with one layer on a second instance": rate(1, EXAMPLE_LAYERS),
        "throughput with half of 8 layers there, over alone": rate(4, 8) / rate(0, 8),
    }


def paired() -> dict[str, float]:
    """§5.2: batches that end while 8B's 32 layers load, each as long as six are computed."""
    of_8b = pair(32, 50, 6.0)
    ends_s = replay(of_8b, ilp_free(of_8b)).ends_s
    count = sum(end_s <= of_8b.ready_s[-1] for end_s in ends_s)
    return {"batches that a pair ends while 32 layers load": float(count)}


def chains() -> dict[str, float]:
    model = spec("llama3-8b")
    layers = [float(model.layer_bytes)] * model.num_layers
    one, four = arrivals_s([1.0] * 4, [1.0] * model.num_layers)[::3]
    slow_first = arrivals_s([1.0, 1.0], LAYERS)
    source = Source(medium=Medium.GPU, node=0, devices=(0,))
    targets = [Target(name=str(i), devices=(i,)) for i in range(1, 8)]
    inside = plan(fabric_of(hardware("a800x32")), [source], targets, layers)
    wide, narrow = (_last_s(domain_to_domain(width), [1.0] * 32) for width in (4, 1))
    return {
        "time of a chain to four over one, 32 layers": four[-1] / one[-1],
        "downtime of the target that is reached twice as fast, first over second": (
            _fast_s() / slow_first[1][-1]
        ),
        "four GPUs to four over one to one": wide / narrow,
        "8B from a GPU to the seven others of its node over NVLink (s)": _last_s(inside, layers),
    }


def _fast_s() -> float:
    """When the planner brings all layers to a target with two NICs, beside one with one NIC."""
    wide = Source(medium=Medium.GPU, node=0, devices=(0, 1))
    targets = [Target(name="slow", devices=(2,)), Target(name="fast", devices=(4, 5))]
    return expected_s(plan(fabric(6, 2), [wide], targets, LAYERS), LAYERS)["fast"][-1]


def _last_s(found: Plan, layers: Sequence[float]) -> float:
    return max(finish_s(chain, layers)[-1] for chain in found.chains)


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
            _copy_all(found)
            if found.may_reclaim(model, name):
                del running[name]
        if step == 1000:
            for name in [name for name, copy in running.items() if copy.node == 3]:
                del running[name]
            found.failed(3)
        _copy_all(found)
        copies = {each: int(each in found.host_copies) for each in models}
        for each in running:
            copies[each.partition(" ")[0]] += 1
        fewest = min(fewest, *copies.values())
    return {
        "host copies of a model at first": float(max(at_first)),
        "fewest copies of a model as instances come and go and a host fails": float(fewest),
    }


def _copy_all(pool: ParameterPool) -> None:
    """Has all copies that are wanted be made and those that are not be dropped."""
    for model in pool.surplus():
        pool.dropped(model)
    for copy in pool.wanted():
        pool.copied(copy.model)
