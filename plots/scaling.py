"""How runs scaled: instances by role over time, and what start-ups, switches and drops took.

A table of any number of runs, live or simulated, and scaling.png in each run's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from harness.records.numbers import number, seconds
from harness.records.run_folder import FinishedRun
from harness.records.run_table import captions, runs_table
from harness.records.scaling import LENT, Scaling, scaling_of
from plots.panels import lanes
from plots.style import PALETTE, figure, save, stamp_runs

PARTS = ("allocate", "engine", "weights", "KV", "rest")
COLUMNS = ("what", "count", "mean", "most", "alloc", *PARTS[1:], "first")
TITLE = "scaling in ms: episodes, means of their parts, first batch after the end"


def scaling(run: FinishedRun) -> Scaling | None:
    """How the run scaled; None: its events tell of no instances that could."""
    engine = run.manifest["engine"]
    return scaling_of(
        run.requests, run.event_rows(), ttft_s=run.summary["slo"]["ttft_s"],
        # Held on average, and so many over the whole run.
        num_devices=(run.summary["gpu_seconds"] or 0.0) / (run.summary["duration_s"] or 1.0),
        num_instances=engine.get("num_instances") or len(engine.get("devices", ())) or None,
    )  # fmt: skip


def episode_rows(found: Scaling) -> Iterator[list[str]]:
    """COLUMNS, in milliseconds, for each kind of episode."""
    for kind in dict.fromkeys(each.kind for each in found.episodes):
        mine = [each for each in found.episodes if each.kind == kind]
        lengths = [each.end_s - each.start_s for each in mine]
        first_s = [each.first_batch_s for each in mine if each.first_batch_s is not None]
        parts = [float(np.mean([each.parts[part] for each in mine])) for part in PARTS]
        times_s = [float(np.mean(lengths)), max(lengths), *parts]
        told = [number(round(1e3 * time_s, 3)) for time_s in times_s]
        after = number(round(1e3 * float(np.mean(first_s)), 3) if first_s else None)
        yield [kind, f"{len(mine):,}", *told, after]


def said(found: Scaling, summary: Mapping[str, Any]) -> dict[str, str]:
    """What there is to say of the whole run, by name."""
    held = [f"{role} {number(held_s)}" for role, held_s in sorted(found.held_gpu_s.items())]
    told = {"GPU seconds held": ", ".join(held)}
    used = found.used_gpu_s
    told["GPU seconds used"] = "not known: not recorded" if used is None else number(used)
    if lent := found.roles.get(LENT):
        mean = sum(end - start for start, end, _ in lent) / (summary["duration_s"] or 1.0)
        told["leases"] = f"{len(lent):,}, {number(mean)} at a time"
    ended = [each for each in found.stable_s if np.isfinite(each)]
    times = (
        [f"mean {seconds(float(np.mean(ended)))}, at most {seconds(max(ended))}"] if ended else []
    )
    if never := len(found.stable_s) - len(ended):
        times.append(f"never after {never}")
    told["time to stable"] = "; ".join(times) or "nothing scaled"
    late, hurt = int(found.late.sum()), int(found.hurt.sum())
    told["late while scaling"] = f"{hurt:,} of {late:,} late, of {len(found.late):,} requests"
    return told


def tables(run_dirs: Sequence[Path]) -> Iterator[Table]:
    """A table of the episodes of all runs, then one of the runs as a whole."""
    runs = [FinishedRun.load(path) for path in run_dirs]
    caption = escape("\n".join(captions([run.manifest for run in runs])))
    episodes = runs_table(TITLE, "system", COLUMNS, min_width=6)
    wholes = Table("system", "", "", caption=caption, box=SIMPLE_HEAD)
    for run in runs:
        system, found = escape(run.manifest["choices"]["system"]), scaling(run)
        if found is None:
            wholes.add_row(system, "", "no slots, leases or switches among the events")
            continue
        for row in episode_rows(found):
            episodes.add_row(system, *row)
        for i, (name, text) in enumerate(said(found, run.summary).items()):
            wholes.add_row("" if i else system, name, text)
    yield episodes
    yield wholes


def draw(run_dir: Path) -> Path | None:
    """Writes scaling.png into the run's folder: its instances, and its episodes if it scaled. None:
    its events tell of no instances."""
    run = FinishedRun.load(run_dir)
    found = scaling(run)
    if found is None or not found.roles:
        return None
    rows = 1 + bool(found.episodes)
    made, (above, *below) = figure(rows, 1, width=9, height=2.5 * rows)
    end_s = max(end for spans in found.roles.values() for _, end, _ in spans)
    _roles(above, found)
    for axes in below:
        _episodes(axes, found, run, end_s)
    for axes in (above, *below):
        axes.set_xlim(0, end_s)
    axes.set_xlabel("time (s)")
    stamp_runs(made, [run])
    return save(made, run_dir / "scaling.png")


def _roles(axes: Axes, found: Scaling) -> None:
    """How many instances there are in each role, and how many leases of lent memory."""
    held = {role: np.array([span[:2] for span in spans]) for role, spans in found.roles.items()}
    edges = np.unique(np.concatenate([[0.0], *map(np.ravel, held.values())]))
    counts = {
        role: [((spans[:, 0] <= at) & (at < spans[:, 1])).sum() for at in edges]
        for role, spans in sorted(held.items())
    }
    leases = counts.pop(LENT, None)
    if counts:
        axes.stackplot(edges, *counts.values(), labels=counts, step="post", colors=PALETTE, lw=0)
    if leases:
        axes.step(edges, leases, where="post", color="0.2", label=f"leases of {LENT}")
    ylabel = "instances, leases" if leases else "instances"
    axes.set(title="Instances by role", ylabel=ylabel, ylim=(0, 1.3 * axes.get_ylim()[1]))
    axes.legend(loc="upper right", ncols=3)


def _episodes(axes: Axes, found: Scaling, run: FinishedRun, end_s: float) -> None:
    kinds = [*dict.fromkeys(each.kind for each in found.episodes)]
    for place, kind in enumerate(kinds):
        mine = [each for each in found.episodes if each.kind == kind]
        spans = [(one.start_s, max(one.end_s - one.start_s, end_s / 2000)) for one in mine]
        axes.broken_barh(spans, (place - 0.3, 0.6), color=PALETTE[place])
    arrival_s = run.requests["arrival_s"].to_numpy()[found.hurt]
    axes.plot(arrival_s, np.full(len(arrival_s), len(kinds)), "|", color=PALETTE[3], ms=8)
    lanes(axes, [*kinds, "late"])
    axes.set_title("Scaling, and the arrivals of late requests that waited meanwhile")
