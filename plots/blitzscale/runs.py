"""What BlitzScale's figures share: runs by workload and system, latencies over time, GPUs held, and
the rows that they become."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.figure import Points, Table
from plots.panels import Look, cdfs, quantiles
from plots.runs import config, events, requests
from plots.style import PALETTE

Floats = npt.NDArray[np.floating[Any]]
SYSTEM = "experiment/blitzscale/system@_global_"
WORKLOAD = "experiment/blitzscale/workload@_global_"
TIMES = ("start_s", "end_s", "arrival_s", "first_s", "last_s")
WORKLOADS = {
    "burstgpt": "BurstGPT, 72B, cluster A",
    "azure_code": "AzureCode, 8B, cluster B",
    "azure_conv": "AzureConv, 24B, cluster A",
}
SHOWN_SEED = 0  # the seed of what is drawn over time
SYSTEMS = {
    "blitzscale": Look("BlitzScale", PALETTE[0]),
    "serverlessllm": Look("S-LLM, TTL 5 min", PALETTE[3]),
    "serverlessllm_30s": Look("S-LLM, TTL 30 s", PALETTE[1], line="--"),
    "serverlessllm_no_room": Look("S-LLM, SSD", PALETTE[6], line=":"),
    "allcache": Look("AllCache", PALETTE[2], line="--"),
    "network": Look("+Network", PALETTE[1]),
    "multicast": Look("+Multicast", PALETTE[4]),
    "distserve_full": Look("DistServe (full)", PALETTE[7]),
    "distserve_half": Look("DistServe (half)", PALETTE[5], line="--"),
    "distserve_half_6_2": Look("DistServe (half), 6 and 2", PALETTE[6], line="--"),
    "no_prescaling": Look("BlitzScale, no pre-scaling", PALETTE[4], line="--"),
    "colocated": Look("BlitzScale, colocated", PALETTE[0]),
    "vllm_full": Look("vLLM (full)", PALETTE[7]),
    "vllm_half": Look("vLLM (half)", PALETTE[5], line="--"),
}
FIXED = ("distserve", "vllm")  # systems that scale nothing
LATENCIES = {"TTFT": "ttft", "TBT": "tbt"}
OVER_TIME_S = 2.0  # step between points of what is drawn over time
# Runs of a workload begin so long before its window. What happens then does not count, and times
# are from the window's start. 300 s are ServerlessLLM's longest TTL: what a host cache has at the
# window's start was used since the run began, or is gone. AzureConv has no gap in which a cache
# could lose the model.
WARM_UP_S = {
    "burstgpt": 300.0, "burstgpt_7b": 300.0, "burstgpt_models": 300.0, "azure_code": 300.0,
    "azure_conv": 120.0,
}  # fmt: skip


@dataclass(slots=True)
class Latencies:
    """The latencies of one run's requests, in seconds; requests that failed have none."""

    arrival: Floats
    ttft: Floats
    at: Floats  # when each token after the first came
    tbt: Floats  # the gap of each such token to the one before
    tpot: Floats  # mean gap of each request, nan with one token


@dataclass(slots=True)
class Run:
    point: Point
    workload: str
    system: str
    valid: bool
    mechanism: float  # what `scaled` counts
    latencies: Latencies = field(repr=False)

    @property
    def seed(self) -> int:
        return self.point.seed

    def events(self, *kinds: str) -> pd.DataFrame:
        """The run's device events, those of the warm-up too: they have times below 0."""
        return shifted(events(self.point.folder, *kinds), warm_up_s(self.point))

    def requests(self) -> pd.DataFrame:
        return counted(self.point)

    def config(self) -> dict[str, Any]:
        return config(self.point.folder)

    def slots(self) -> pd.DataFrame:
        """GPUs held: instance, start_s, end_s, role, num_devices."""
        return self.events("slot")

    def loads(self) -> pd.DataFrame:
        """Each instance's loads from each of its sources; not those from none, before the run."""
        return self.events("load").query("source != '' and start_s >= 0")

    def scale_ups(self) -> pd.DataFrame:
        """The times when instances loaded; `served`: requests of which they ran layers meanwhile,
        whose KV then left them."""
        sent = self.events("kv_move")
        found = self.slots().query("role == 'loading' and start_s >= 0")
        served = []
        for instance, start_s, end_s in found[["instance", "start_s", "end_s"]].to_numpy():
            meanwhile = sent.start_s.between(start_s, end_s, inclusive="left")
            of_slot = sent[meanwhile & (sent.instance == instance)]
            served.append([request for requests in of_slot.requests for request in requests])
        return found.assign(served=pd.Series(served, found.index, dtype=object))

    def row(self, quantity: str, value: float, **more: Any) -> dict[str, Any]:
        return {
            "quantity": quantity, "workload": self.workload, "system": self.system,
            "seed": self.seed, "valid": self.valid, "mechanism": self.mechanism, "value": value,
            **more,
        }  # fmt: skip

    def rows(self, values: Mapping[str, Any], **more: Any) -> list[dict[str, Any]]:
        return [self.row(name, float(value), **more) for name, value in values.items()]

    def curve(self, quantity: str, x: Floats, y: Floats) -> list[dict[str, Any]]:
        """A row for each point."""
        return [self.row(quantity, float(v), x=float(at)) for at, v in zip(x, y, strict=True)]


def runs(points: Points, systems: Collection[str] | None = None) -> list[Run]:
    """The runs of `systems`, or of all systems if None, that were not refused."""
    return [
        Run(
            point, point.overrides.get(WORKLOAD, ""), point.overrides.get(SYSTEM, ""),
            point.verdict()["status"] == "VALID", scaled(point), latencies(counted(point)),
        )
        for point in points
        if point.path is not None and (systems is None or point.overrides[SYSTEM] in systems)
    ]  # fmt: skip


def table_of(
    of_run: Callable[[Run], Iterable[dict[str, Any]]], systems: Collection[str] | None = None
) -> Table:
    """A table of the rows that `of_run` makes of each run of `systems`."""
    return lambda points: pd.DataFrame(
        [row for run in runs(points, systems) for row in of_run(run)]
    )


def warm_up_s(point: Point) -> float:
    """Seconds at the start of a run that do not count: none where no workload is named."""
    return WARM_UP_S.get(point.overrides.get(WORKLOAD, ""), 0.0)


def shifted(found: pd.DataFrame, by_s: float) -> pd.DataFrame:
    """With all times earlier by `by_s`."""
    times = [name for name in found if name in TIMES]
    return found.assign(**{name: found[name] - by_s for name in times})


def since_the_run_began(point: Point) -> pd.DataFrame:
    """All requests, with times from the window's start: those of the warm-up arrive below 0."""
    found, by_s = requests(point.folder), warm_up_s(point)
    if by_s:
        found = shifted(found, by_s)
        found["token_times_s"] = found.token_times_s.map(lambda times: times - by_s)
    return found


def counted(point: Point) -> pd.DataFrame:
    """The requests that arrive in the window, with times from its start."""
    found = since_the_run_began(point)
    return found[found.arrival_s >= 0]


def scaled(point: Point) -> float:
    """How many instances the run scaled up in its window; nan where its system never does."""
    if point.manifest()["choices"]["system"] in FIXED:
        return np.nan
    slots = events(point.folder, "slot").query("role == 'loading'")
    return float((slots.start_s >= warm_up_s(point)).sum())


def latencies(found: pd.DataFrame) -> Latencies:
    rows = found.dropna(subset=["first_s"])
    return Latencies(
        arrival=rows.arrival_s.to_numpy(),
        ttft=rows.ttft_s.to_numpy(),
        at=np.concatenate([times[1:] for times in rows.token_times_s]),
        tbt=np.concatenate([np.diff(times) for times in rows.token_times_s]),
        tpot=rows.tpot_s.to_numpy(),
    )


def over_time(
    at: Floats, values: Floats | None = None, step_s: float = 1.0
) -> tuple[Floats, Floats]:
    """The mean of `values` in each step that has any; without `values`, how many there are a
    second in each step."""
    steps = np.floor(at / step_s).astype(int)
    count = np.bincount(steps)
    if values is None:
        return np.arange(len(count)) * step_s, count / step_s
    total = np.bincount(steps, values)
    there = np.flatnonzero(count)
    return there * step_s, total[there] / count[there]


def held_over_time(
    found: pd.DataFrame, roles: Iterable[str], step_s: float = OVER_TIME_S
) -> tuple[Floats, Floats]:
    """Mean GPUs held by `roles` in each step."""
    rows = found[found.role.isin(list(roles))]
    at = np.arange(0.0, found.end_s.max(), step_s)
    start, end = rows.start_s.to_numpy(), rows.end_s.to_numpy()
    overlap = np.minimum(end, at[:, None] + step_s) - np.maximum(start, at[:, None])
    return at, (np.clip(overlap, 0, None) * rows.num_devices.to_numpy()).sum(axis=1) / step_s


def from_ssd(run: Run) -> float:
    """Share of the run's loads that came from SSD; nan where there is none."""
    return float(run.loads().source.str.startswith("ssd").mean())


def gpu_seconds(run: Run) -> float:
    """GPU-seconds held from the window's start to the last token; a system without slots holds all
    GPUs."""
    if run.point.manifest()["choices"]["system"] != "vllm":
        return held_s(run.slots())
    return float(run.config()["hardware"]["num_devices"]) * end_s(run)


def held_s(slots: pd.DataFrame) -> float:
    """GPU-seconds of `slots` from the window's start."""
    times_s = (slots.end_s - slots.start_s.clip(lower=0)).clip(lower=0)
    return float((times_s * slots.num_devices).sum())


def end_s(run: Run) -> float:
    """When the last token came, from the window's start."""
    found = run.latencies
    return max(float(found.at.max()), float((found.arrival + found.ttft).max()))


def latency_cdfs(found: Sequence[Run], systems: Iterable[str]) -> list[dict[Any, Any]]:
    """Rows of the CDFs of TTFT and TBT of each workload and system, over all seeds."""
    rows: list[dict[Any, Any]] = []
    for workload in dict.fromkeys(run.workload for run in found):
        for system in systems:
            of_both = [r.latencies for r in found if (r.workload, r.system) == (workload, system)]
            for name, key in LATENCIES.items() if of_both else ():
                cdf = quantiles(np.concatenate([getattr(each, key) for each in of_both]))[::2]
                about = {"quantity": f"CDF of {name}", "workload": workload, "system": system}
                rows += cdf.assign(**about).to_dict("records")
    return rows


def plot_cdfs(panels: Sequence[Axes], rows: pd.DataFrame, systems: Iterable[str]) -> None:
    """Draws the CDFs of TTFT and TBT, a panel each."""
    looks = {system: SYSTEMS[system] for system in systems}
    for panel, name in zip(panels, LATENCIES, strict=True):
        cdfs(panel, rows[rows.quantity == f"CDF of {name}"], looks)
        panel.set(title=f"CDF of {name}", xlabel="seconds")


def _mean_ttft(found: Latencies, half: int) -> float:
    """Of the requests that arrive in the first or the second half of the window."""
    second = found.arrival >= found.arrival.max() / 2
    return float(found.ttft[second == bool(half)].mean())


MEASURES: dict[str, Callable[[Run], float]] = {
    "mean TTFT": lambda run: float(run.latencies.ttft.mean()),
    "mean TBT": lambda run: float(run.latencies.tbt.mean()),
    "mean TTFT, first half": lambda run: _mean_ttft(run.latencies, 0),
    "mean TTFT, second half": lambda run: _mean_ttft(run.latencies, 1),
    "P95 TTFT": lambda run: float(np.percentile(run.latencies.ttft, 95)),
    "P95 TBT": lambda run: float(np.percentile(run.latencies.tbt, 95)),
    "P99 TTFT": lambda run: float(np.percentile(run.latencies.ttft, 99)),
    "P99 TBT": lambda run: float(np.percentile(run.latencies.tbt, 99)),
    "GPU time": gpu_seconds,
}


def compared(
    found: Sequence[Run], against: Iterable[str], system: str = "blitzscale"
) -> list[dict[str, Any]]:
    """All MEASURES of all runs, and what `system` saves of them against each."""
    rows = [run.row(name, measure(run)) for run in found for name, measure in MEASURES.items()]
    return rows + [row for other in against for row in saved(found, other, system)]


def saved(
    found: Sequence[Run], against: str, system: str = "blitzscale",
    quantities: Iterable[str] = MEASURES,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yields for each quantity, workload and seed with both systems: 1 − the quantity of `system`
    over that of `against`, and their ratio (`… over`)."""
    theirs = {(run.workload, run.seed): run for run in found if run.system == against}
    both = [
        (run, theirs[run.workload, run.seed]) for run in found
        if run.system == system and (run.workload, run.seed) in theirs
    ]  # fmt: skip
    for quantity in quantities:
        for run, other in both:
            ratio = MEASURES[quantity](run) / MEASURES[quantity](other)
            about = {"against": against, "valid": run.valid and other.valid}
            yield run.row(f"share of {quantity} saved", 1 - ratio) | about
            yield run.row(f"{quantity} over", ratio) | about
