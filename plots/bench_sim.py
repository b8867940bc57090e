"""How fast the simulator is: requests simulated per second, by how many there are, from
bench_sim.json: a line per number of instances, and the per-token reference beside it; what
whole runs of other systems take; each system's loop beside other simulators, and over the queue.

python -m plots bench_sim
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness.files import read_json
from harness.schedule import shown as shown_kinds
from plots.caption import caption
from plots.style import PALETTE, figure, log_scale, save

MARKS = {"macro, compiled": "o-", "macro": "o--", "per token": "s"}  # of each way of stepping

COLUMNS = ["system", "load", "requests", "requests_per_s"]  # of the rows of loops
# Requests/s as measured on a 2-core machine of another time (docs/simulator-speed.md)
OTHERS = {
    "Vidur": 186, "splitwise-sim": 774, "simdistserve": 1345, "BLIS": 627, "inference-lab": 2880,
}  # fmt: skip


def draw(folder: Path) -> Path:
    """Makes bench_sim.png beside bench_sim.json and returns its path."""
    found = read_json(folder / "bench_sim.json")
    made, (speed, memory, whole, loops, queue, unused) = figure(2, 3, width=13, height=7)
    unused.axis("off")
    speed.set(title="Speed", xlabel="requests", ylabel="requests/s of one process")
    memory.set(title="Memory", xlabel="requests", ylabel="peak memory (GiB)")
    rows = pd.DataFrame(found["rows"]).sort_values("requests", kind="stable")
    for colour, (count, of_count) in zip(PALETTE, rows.groupby("instances"), strict=False):
        for stepping, style in MARKS.items():
            shown = of_count[of_count.stepping == stepping]
            if len(shown):
                looks = {"ms": 4, "color": colour}
                label = f"{count} instance{'s' * (count != 1)}, {stepping}"
                speed.plot(shown.requests, shown.requests_per_s, style, label=label, **looks)
                memory.plot(shown.requests, shown.peak_memory_gib, style, **looks)
    for panel in (speed, memory):
        log_scale(panel, "x")
        panel.set_ylim(bottom=0)
    _whole_runs(whole, found.get("runs", []))
    systems = pd.DataFrame(found.get("systems", []), columns=COLUMNS)
    _beside_others(loops, systems[systems.load == "0.8"])
    _over_the_queue(queue, systems[systems.load == "at once"])
    made.legend(handles=speed.lines, ncols=3, loc="outside upper center", fontsize=7)
    git, machine = found["git"], found["machine"]
    on = f"{machine['cpu']}, {machine['num_cores']} cores, one process"
    revision = f"git {git['revision'][:10]}" + (" with changes" if git["dirty"] else "")
    if "systems_git" in found:  # the lower row was measured again, later, and some of it once more
        again = [row["revision"] for row in found["systems"] if "revision" in row]
        each = dict.fromkeys([found["systems_git"]["revision"], *again])
        revision += f"; lower row git {' and '.join(one[:10] for one in each)}"
    synthetic = dict.fromkeys(kind for row in found["rows"] for kind in row.get("synthetic", []))
    caption(made, shown_kinds(synthetic), [on, revision])
    return save(made, folder / "bench_sim.png")


def _whole_runs(axes: Axes, runs: list[dict[str, Any]]) -> None:
    """A pair of bars for each system's run; empty where none was measured."""
    axes.set(title="Whole runs, with configuration and files", xlabel="CPU µs a request")
    names = list(dict.fromkeys(run["name"] for run in runs))
    for is_compiled, shift, colour in ((False, 0.2, PALETTE[1]), (True, -0.2, PALETTE[0])):
        chosen = [run for run in runs if run["compiled"] == is_compiled]
        places = [names.index(run["name"]) + shift for run in chosen]
        widths = [1e6 / run["requests_per_s"] for run in chosen]
        bars = axes.barh(places, widths, 0.38, color=colour)
        axes.bar_label(
            bars, [f"{w:,.0f}{', compiled' * is_compiled}" for w in widths], fontsize=6, padding=2
        )
    axes.set_yticks(range(len(names)), [name.replace(": ", ":\n") for name in names], fontsize=6)
    axes.invert_yaxis()
    axes.margins(x=0.3)


def _beside_others(axes: Axes, rows: pd.DataFrame) -> None:
    """A bar for each system with the most requests, and for each other simulator."""
    axes.set(title="Loops at 0.8 of saturation, and other simulators", xlabel="requests/s")
    most = rows.sort_values("requests").groupby("system", sort=False).requests_per_s.last()
    rates = dict(sorted({**most, **OTHERS}.items(), key=lambda each: -each[1]))
    colours = [PALETTE[1] if name in OTHERS else PALETTE[0] for name in rates]
    bars = axes.barh(list(rates), list(rates.values()), color=colours)
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates.values()], fontsize=6, padding=2)
    log_scale(axes, "x")
    axes.tick_params(axis="y", labelsize=6)
    axes.invert_yaxis()
    axes.margins(x=0.3)


def _over_the_queue(axes: Axes, rows: pd.DataFrame) -> None:
    """A line for each system: what a request costs with all requests queued."""
    axes.set(title="All requests queued", xlabel="requests", ylabel="CPU µs a request")
    for system, own in rows.groupby("system", sort=False):
        axes.plot(own.requests, 1e6 / own.requests_per_s, "o-", ms=3, label=system)
    log_scale(axes, "x")
    log_scale(axes, "y")
    if len(rows):
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=7)
