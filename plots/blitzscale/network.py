"""Rates, capacity and the network: what loading needs, what serving leaves (Figs. 3 and 22)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from plots.blitzscale.runs import (
    OVER_TIME_S,
    SHOWN_SEED,
    SYSTEMS,
    WORKLOADS,
    Floats,
    Run,
    runs,
    table_of,
)
from plots.conf import spec
from plots.figure import Panels, Points, picture
from plots.panels import Look, facets, lines
from plots.runs import overrides
from plots.style import PALETTE, log_scale

SLOS_S = {"burstgpt": (1.25, 0.2), "azure_code": (0.45, 0.15)}  # §3: TTFT, TBT
GIGABITS = {  # size of a GPU's part of the parameters
    "burstgpt": spec("qwen2.5-72b").weight_bytes * 8e-9 / 4,
    "azure_code": spec("llama3-8b").weight_bytes * 8e-9,
}
LINKS = {"SSD": 10, "RDMA": 200, "PCIe": 256, "NVLink": 1600}  # Gbps, Fig. 5
LIMITS = {"burstgpt": (0.6, 0.4), "azure_code": (0.6,)}  # §3, §1: of requests that violate
DELAYED = {
    "half": Look("half of the capacity", PALETTE[0], "o"),
    "all": Look("all of it", PALETTE[3], "s", "--"),
}


def violations(points: Points) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for run in runs(points):
        ttft_s, tbt_s = SLOS_S[run.workload]
        late = run.latencies.ttft > ttft_s
        slow = run.latencies.tpot > tbt_s
        values = {
            "violations, TTFT": late.mean(), "violations, TBT": slow.mean(),
            "violations, either": (late | slow).mean(), "mean TTFT": run.latencies.ttft.mean(),
        }  # fmt: skip
        about = {"gbps": float(overrides(run.point)["ssd_bytes_per_s"]) * 8 / 1e9}
        about["rate"] = float(overrides(run.point)["rate"])
        about["delay_s"] = GIGABITS[run.workload] / about["gbps"]
        run.system = "delayed"
        rows += run.rows(values, config_hash=run.point.config_hash(), **about)
    found = pd.DataFrame(rows)
    least = found.groupby("workload").rate.transform("min")
    found["load"] = np.where(found.rate == least, "half", "all")
    return pd.concat([found, pd.DataFrame(needed(found))], ignore_index=True)


@picture(
    "blitzscale_fig03", violations, tuple(f"blitzscale_fig03_{name}" for name in SLOS_S),
    shape=(1, 4), size=(12, 3.4), legend=2, quick="rows",
)  # fmt: skip
def fig03(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 3: requests that violate section 3's SLOs, by the rate of a GPU at which instances load.
    (a)-(d) TTFT and TBT, 72B on BurstGPT and 8B on AzureCode. A request violates its TBT by its
    mean. A new instance is ready after the bytes of a GPU's part over that rate, and after nothing
    else, like the delays of the paper's simulator. Vertical lines: an SSD's, RDMA's and PCIe's
    rates, as in Fig. 5. The paper does not name the load: half of the capacity, as in section 6,
    and all of it."""
    names = ("violations, TTFT", "violations, TBT")
    found = facets(axes, rows, workload=SLOS_S, quantity=names)
    for letter, (panel, mine, workload, quantity) in zip("abcd", found, strict=True):
        name = quantity.partition(", ")[2]
        lines(panel, mine, "gbps", "value", DELAYED, by="load", factor=100)
        log_scale(panel, "x")
        for link, gbps in LINKS.items():
            panel.axvline(gbps, color="0.5", lw=0.7, ls=":")
            side = "left" if link in ("SSD", "PCIe") else "right"  # within the panel, and apart
            panel.text(gbps, 100, link, rotation=90, fontsize=8, va="top", ha=side)
        limit_s = SLOS_S[workload][name == "TBT"]
        panel.set(
            title=f"({letter}) {name}, {WORKLOADS[workload].rpartition(',')[0]}", ylim=(-2, 102),
            xlabel="Gbps a GPU", ylabel=f"% of requests over {1000 * limit_s:g} ms",
        )  # fmt: skip
    return "Stop-the-world, ready after the parameters over the rate; mean and range of seeds."


def needed(table: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Finds, for each workload, load and seed, the rate below which more than a limit of requests
    violate either SLO, and the delay that goes with it: by a straight line between points in log
    rate; nan where fewer do at every rate."""
    either = table[table.quantity == "violations, either"]
    for (name, load, seed), found in either.groupby(["workload", "load", "seed"]):
        workload = str(name)
        curve = found.sort_values("gbps")
        about = {"workload": workload, "system": "delayed", "seed": seed, "load": load}
        about |= {"rate": curve.rate.iloc[0]}
        about |= {"valid": bool(found.valid.all()), "mechanism": found.mechanism.sum()}
        for limit in LIMITS[workload]:
            over = np.flatnonzero(curve.value > limit)
            gbps = np.nan
            if 0 < len(over) < len(curve) and over[-1] + 1 < len(curve):
                pair = curve.iloc[[over[-1] + 1, over[-1]]]
                gbps = float(np.exp(np.interp(limit, pair.value, np.log(pair.gbps))))
            what = f"which over {100 * limit:.0f} % violate"
            yield about | {"quantity": f"Gbps below {what}", "value": gbps}
            delay_s = GIGABITS[workload] / gbps
            yield about | {"quantity": f"seconds of load above {what}", "value": delay_s}


SATURATED = {"burstgpt": "(e)", "azure_code": "(f)"}  # their panels
SATURATING = tuple(f"blitzscale_fig03_network_{workload}" for workload in SATURATED)


def saturated(points: Points) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for run in runs(points):
        run.workload = run.point.experiment.removeprefix("blitzscale_fig03_network_")
        run.system = "distserve_full"
        used = used_share(run, "kv_move")
        of_run = run.rows({
            "share used in the busiest second": used.max(),
            "share free in the busiest second": 1 - used.max(),
        })  # fmt: skip
        if run.seed == SHOWN_SEED:
            of_run += _over_time(run, "share used", "kv_move")
        rows += [each | {"config_hash": run.point.config_hash()} for each in of_run]
    return pd.DataFrame(rows)


@picture("blitzscale_fig03_network", saturated, SATURATING, shape=(1, 2), size=(8, 3), quick="rows")
def fig03_network(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 3 (e) and (f): use of the network over time at the highest rate that a cluster sustains:
    DistServe on all GPUs, of the rates that were tried when the capacity was found the highest that
    has 90 % of requests on time. Bytes between hosts, as in Fig. 22."""
    said = []
    curves = rows[rows.quantity == "share used"]
    for panel, shown, workload in facets(axes, curves, workload=SATURATED):
        title = f"{SATURATED[workload]} {WORKLOADS[workload].rpartition(',')[0]}"
        panel.plot(shown.x, 100 * shown.value, color=PALETTE[0], lw=1)
        panel.set(title=title, xlabel="seconds", ylabel="% of all NICs")
        panel.set_ylim(0, None)
        said.append(f"{100 * shown.value.max():.2g} %")
    return (
        "KV between hosts, DistServe on all GPUs at the highest rate tried that has 90 % of "
        f"requests on time; seed {SHOWN_SEED}. Scales differ: at most {said[0]} and {said[1]}."
    )


COMPARED = ("serverlessllm", "blitzscale")
KINDS = {"KV": "kv_move", "parameters": "transfer"}


def _used(run: Run) -> Iterator[dict[str, Any]]:
    levels = {label: used_share(run, kind) for label, kind in KINDS.items()}
    values = {f"used by {label}": level.mean() for label, level in levels.items()}
    values["used by KV in the busiest second"] = levels["KV"].max()
    values["used by parameters in the busiest second"] = levels["parameters"].max()
    values["free in the busiest second"] = 1 - sum(levels.values(), np.float64()).max()
    yield from run.rows({f"share of the NICs {what}": value for what, value in values.items()})
    for label, kind in KINDS.items() if run.seed == SHOWN_SEED else ():
        yield from _over_time(run, f"share by {label}", kind)


@picture(
    "blitzscale_fig22", table_of(_used, COMPARED), ("blitzscale_fig17",), shape=(2, 3),
    size=(9, 4.8), legend=len(KINDS), quick="rows",
)  # fmt: skip
def fig22(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 22: share of the cluster's NIC bandwidth in use over time, by KV and by parameters:
    bytes that cross from one host to another, over what all NICs could carry. Within a host they
    cross NVLink or PCIe."""
    for panel, mine, system, workload in facets(axes, rows, system=COMPARED, workload=WORKLOADS):
        levels = [mine[mine.quantity == f"share by {label}"] for label in KINDS]
        shares = [100 * level.value for level in levels]
        panel.stackplot(levels[0].x, shares, lw=0, colors=PALETTE[:2], labels=list(KINDS))
        title = f"{SYSTEMS[system].label}: {WORKLOADS[workload].partition(',')[0]}"
        panel.set(title=title, ylim=(0, None), xlim=(0, None))
    for panel in axes[::3]:
        panel.set_ylabel("% of all NICs")
    for panel in axes[3:]:
        panel.set_xlabel("seconds")
    return (
        f"Means of {OVER_TIME_S:g} s, seed {SHOWN_SEED}. Between hosts alone; 100 %: every NIC "
        "sends at its rate; scales differ."
    )


def _over_time(run: Run, quantity: str, kind: str) -> list[dict[str, Any]]:
    share = used_share(run, kind, OVER_TIME_S)
    return run.curve(quantity, np.arange(len(share)) * OVER_TIME_S, share)


def used_share(run: Run, kind: str, step_s: float = 1.0) -> Floats:
    """The share of what the NICs of all GPUs can send that is in use in each step."""
    found = run.config()
    hardware, tp = found["hardware"], found["model"]["tp"]
    moves = run.events(kind)
    sender = moves.instance if kind == "kv_move" else moves.source
    receiver = moves.to if kind == "kv_move" else moves.instance
    length = int(np.ceil(run.events("slot").end_s.max() / step_s)) + 1
    sent = np.zeros(length)
    between = _nodes(sender, hardware, tp) != _nodes(receiver, hardware, tp)
    crossing = sender.str.startswith("sim-") & receiver.str.startswith("sim-") & between
    crossing &= moves.end_s >= 0
    at = np.minimum((moves.end_s[crossing].to_numpy() / step_s).astype(int), length - 1)
    np.add.at(sent, at, moves.bytes[crossing].to_numpy(float))
    every_nic = float(hardware["num_devices"] * hardware["nic_bytes_per_s"])
    return sent / (every_nic * step_s)


def _nodes(names: pd.Series, hardware: dict[str, Any], tp: int) -> pd.Series:
    """The host of each instance; −1 for a name that is no instance."""
    number = names.str.extract(r"^sim-(\d+)$", expand=False).astype(float)
    nodes: pd.Series = (number * tp // hardware["devices_per_node"]).fillna(-1)
    return nodes
