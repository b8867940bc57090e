"""Our planner's plans and schedules on the paper's examples, nothing was run: Figs. 12 to 15."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pandas as pd
from matplotlib.patches import Patch

from plots.figure import Panels, Points, picture
from plots.panels import facets
from plots.style import PALETTE
from systems.blitzscale.chains import Medium, Plan, Source, Target, arrivals_s, finish_s
from systems.blitzscale.fabric import Device, Fabric
from systems.blitzscale.ilp import ilp
from systems.blitzscale.loads import pulls
from systems.blitzscale.planner import plan
from systems.blitzscale.schedulers import best_effort, ilp_free, overlap
from systems.blitzscale.timeline import PairTimes, Timeline, replay

LAYERS = [1.0] * 32


def fabric(num_devices: int, per_node: int = 1) -> Fabric:
    """Links of one layer a unit of time, but for NVLink within a node, which takes hardly any."""
    devices = tuple(
        Device(index=i, node=i // per_node, domain=i // per_node, leaf=0)
        for i in range(num_devices)
    )
    return Fabric(
        devices=devices, nvlink_bytes_per_s=1e6, peer_bytes_per_s=1.0, nic_bytes_per_s=1.0,
        pcie_bytes_per_s=1.0, ssd_bytes_per_s=0.1,
    )  # fmt: skip


def domain_to_domain(width: int, layers: Sequence[float] = LAYERS) -> Plan:
    """A domain of `width` GPUs, each with a copy, to another one: Fig. 14."""
    sources = [Source(medium=Medium.GPU, node=0, devices=(i,)) for i in range(width)]
    targets = [Target(name=f"T{i + 1}", devices=(width + i,)) for i in range(width)]
    return plan(fabric(2 * width, width), sources, targets, layers)


SOURCES = {"(a) one source": 1, "(b) two sources": 2}


def two_prefills(points: Points) -> pd.DataFrame:
    """The chains that scale two prefills from one and from two decodes. `live`: the target serves
    live."""
    rows: list[dict[str, object]] = []
    for count in SOURCES.values():
        sources = [Source(medium=Medium.GPU, node=i, devices=(i,)) for i in range(count)]
        targets = [Target(name=f"T{i + 1}", devices=(count + i,), live=True) for i in range(2)]
        chains = plan(fabric(count + 2), sources, targets, LAYERS).chains
        nodes = []
        for number, chain in enumerate(chains):
            names = [f"S{number + 1}", *(t.name for hop in chain.hops for t in hop.targets)]
            tails = {target.name for target in chain.hops[-1].targets if target.live}
            nodes += [
                {"chain": number, "place": place, "node": name, "live": name in tails}
                for place, name in enumerate(names)
            ]
        values = {
            "targets that serve live": float(sum(bool(node["live"]) for node in nodes)),
            "last target has all layers": max(finish_s(c, LAYERS)[-1] for c in chains),
        }
        rows += [node | {"sources": count, "quantity": "node of a chain"} for node in nodes]
        rows += [
            {"sources": count, "quantity": name, "value": value} for name, value in values.items()
        ]
    return pd.DataFrame(rows).assign(inputs="ours")


@picture("blitzscale_fig12", two_prefills, shape=(1, 2), size=(8, 2.6))
def fig12(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 12: two prefills are scaled from one source, and from two; only a chain's tail serves
    live. Each instance is a node of its own, as in the paper's figure. A row for each chain."""
    for panel, (name, num_sources) in zip(axes, SOURCES.items(), strict=True):
        of_panel = rows[rows.sources == num_sources]
        serving = of_panel[of_panel.quantity == "targets that serve live"].value.item()
        nodes = of_panel[of_panel.quantity == "node of a chain"]
        for x, y, node, live in nodes[["place", "chain", "node", "live"]].to_numpy():
            colour = PALETTE[0] if live else "0.85" if x else PALETTE[1]
            box = {"boxstyle": "round,pad=0.6", "fc": colour, "ec": "none"}
            panel.text(x, y, node, ha="center", va="center", color="black", bbox=box)
            if x:
                arrow = {"arrowstyle": "->", "color": "0.3"}
                panel.annotate("", (x - 0.2, y), (x - 0.8, y), arrowprops=arrow)
        panel.set(
            xlim=(-0.5, 2.5), ylim=(1.6, -0.6), title=f"{name}: {serving:.0f} of 2 serve live"
        )
        panel.axis("off")
    return "Our planner's plans, nothing was run. Blue: serves while it loads."


CHAIN_LAYERS = 4
CHAINS = {  # the rate of each hop
    "(a) three targets at one rate": (1.0, 1.0, 1.0),
    "(b) the slower target first": (1.0, 2.0),
    "the faster target first": (2.0, 1.0),
}


def chains(points: Points) -> pd.DataFrame:
    rows = [
        {"chain": name, "node": node + 1, "rate": rates[node], "layer": layer + 1, "arrives": end}
        for name, rates in CHAINS.items()
        for node, arrived in enumerate(arrivals_s(rates, [1.0] * CHAIN_LAYERS))
        for layer, end in enumerate(arrived)
    ]
    return pd.DataFrame(rows).assign(inputs="ours")


@picture("blitzscale_fig13", chains, shape=(1, 3), size=(10, 2.6))
def fig13(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 13: a chain forwards layer by layer (a), and which of two targets comes first in it (b).
    By the planner's own arithmetic (`arrivals_s`), in the time that a layer takes at rate 1. Each
    row is a node of the chain, each box a layer on its way to it."""
    for panel, boxes, name in facets(axes, rows, chain=CHAINS):
        labels = {}
        for node, rate, layer, end in boxes[["node", "rate", "layer", "arrives"]].to_numpy():
            colour = PALETTE[int(layer) - 1]
            panel.barh(node, 1 / rate, left=end - 1 / rate, edgecolor="white", color=colour)
            panel.text(end - 0.5 / rate, node, f"{layer:.0f}", ha="center", va="center")
            labels[node] = f"target {node:.0f}, rate {rate:g}"
        panel.set_yticks(list(labels), list(labels.values()))
        panel.set(title=name, xlim=(0, 7), ylim=(len(labels) + 0.5, 0.5), xlabel="layer times")
        panel.grid(False, axis="y")
    return f"The planner's arithmetic, nothing was run. {CHAIN_LAYERS} layers; (b) has two orders."


WIDTH, SHARDED_LAYERS = 4, 8
LINKS = {"NIC": PALETTE[0], "NVLink": "0.85"}


def sharded(points: Points) -> pd.DataFrame:
    rows = []
    for pull in pulls(domain_to_domain(WIDTH, [1.0] * SHARDED_LAYERS), SHARDED_LAYERS):
        network = pull.source < WIDTH
        source = f"S{pull.source + 1}" if network else f"T{pull.source - WIDTH + 1}"
        link = "NIC" if network else "NVLink"
        rows += [
            {"target": pull.target, "layer": layer + 1, "from": source, "over": link}
            for layer in pull.layers
        ]
    found = pd.DataFrame(rows)
    shares = found[found.over == "NIC"].groupby("target").layer.count() / SHARDED_LAYERS
    quantity = {"over": "share of the layers over one NIC", "value": shares.max()}
    return pd.concat([found, pd.DataFrame([quantity])], ignore_index=True).assign(inputs="ours")


@picture("blitzscale_fig14", sharded, size=(6, 2.8))
def fig14(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 14: four GPUs with the parameters send them to four others, each a quarter of the layers
    over its own NIC; NVLink brings the rest. By whole layers. A box is a layer that reaches a
    target."""
    (panel,) = axes
    boxes = rows[rows.over.isin(list(LINKS))]
    names = sorted(boxes.target.unique())
    for target, layer, source, link in boxes[["target", "layer", "from", "over"]].to_numpy():
        y = names.index(target)
        panel.barh(y, 0.92, left=layer - 0.46, color=LINKS[link])
        panel.text(layer, y, source, ha="center", va="center", fontsize=8)
    handles = [Patch(color=colour, label=link) for link, colour in LINKS.items()]
    panel.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    panel.set_yticks(range(len(names)), names)
    panel.set_xticks(range(1, SHARDED_LAYERS + 1))
    panel.set(title="Who sends which layer to whom", xlabel="layer", ylim=(3.6, -0.6))
    panel.grid(False)
    return "Our planner's plan, nothing was run. S: a source's GPU, T: a target's."


EXAMPLE_LAYERS, LOAD, BATCHES = 7, 6.0, 6  # §4, Fig. 15


def alone(pair: PairTimes) -> Sequence[int | None]:
    """Nothing on the target before it has all layers: it is too late for these batches."""
    return [0] * len(pair.layer_s)


SCHEDULERS: dict[str, Callable[[PairTimes], Sequence[int | None]]] = {
    "source alone, and stop-the-world (Fig. 9 a, b)": alone,
    "best effort (Fig. 15 a)": best_effort,
    "ZigZag, ILP-free (Fig. 15 b, 16)": ilp_free,
    "ZigZag, ILP (eq. 1)": ilp,
    "overlap, not live (Fig. 9 c)": overlap,
}


def pair(num_layers: int, num_batches: int, load: float) -> PairTimes:
    """Batches of one time a layer, from when the first layer is there; `load` times to load one."""
    ready_s = tuple(load * layer for layer in range(num_layers))
    return PairTimes(num_layers=num_layers, layer_s=(1.0,) * num_batches, ready_s=ready_s)


def schedules(points: Points) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    example = pair(EXAMPLE_LAYERS, BATCHES, LOAD)
    for name, scheduler in SCHEDULERS.items():
        found = replay(example, scheduler(example))
        rows += numbers(name, found)
        rows += [
            {"quantity": "runs", "scheduler": name, "batch": run.batch + 1,
             "on_target": run.on_target, "start": run.start_s, "end": run.end_s}
            for run in found.runs
        ]  # fmt: skip
    return pd.DataFrame(rows).assign(inputs="paper")


def numbers(name: str, found: Timeline) -> Iterator[dict[str, object]]:
    """Yields for each batch: its end, its time from its first layer, its layers on either
    instance."""
    for batch, (end, on_target) in enumerate(zip(found.ends_s, found.on_target, strict=True)):
        first = min(run.start_s for run in found.runs if run.batch == batch)
        values = {
            "end": end, "layers on the target": on_target, "from its first layer": end - first,
            "layers on the source": EXAMPLE_LAYERS - on_target,
        }  # fmt: skip
        for quantity, value in values.items():
            yield {"quantity": quantity, "scheduler": name, "batch": batch + 1, "value": value}


@picture("blitzscale_fig15", schedules, shape=(len(SCHEDULERS), 1), size=(9, 7.5))
def fig15(axes: Panels, rows: pd.DataFrame) -> str:
    """Figs. 9 and 15: the schedulers as Gantt charts, in layer times: the pure schedulers on the
    paper's example: seven layers, six layer times to load one, six batches from when the first
    layer is there. ZigZag is Fig. 9 (d) too."""
    runs = rows[rows.quantity == "runs"]
    for panel, spans, name in facets(axes, runs, scheduler=SCHEDULERS):
        columns = ["batch", "on_target", "start", "end"]
        for batch, on_target, start, end in spans[columns].to_numpy():
            level = 0 if on_target else 1
            colour = PALETTE[batch - 1]
            panel.barh(level, end - start, left=start, color=colour, edgecolor="white")
            panel.text((start + end) / 2, level, str(batch), ha="center", va="center")
        for layer in range(EXAMPLE_LAYERS):
            panel.axvline(LOAD * layer, color="0.4", lw=0.7, ls=":")
        panel.set_yticks([0, 1], ["target", "source"])
        panel.grid(False)
        panel.set(title=name, xlim=(0, 45))
    axes[-1].set_xlabel("layer times since the first layer was there")
    return (
        "Pure schedulers, nothing was run: 7 layers, 6 layer times to load one. Numbers: batches; "
        "dotted: a layer arrives at the target."
    )
