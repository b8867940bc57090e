"""The figures of docs/matrix.md: goodput as a map, all cells as tables, the settings, what they
depend on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.capacity_search import Search
from harness.records.interval import Interval
from plots.figure import Panels, PaperFigure, Points, Words, picture, text
from plots.matrix.cells import HARDWARE, SLOW, WORKLOADS, Cell, cells, leader, leaders, of_runs

SYSTEMS = {
    "vllm": "vLLM", "llumnix": "Llumnix", "kunserve": "KunServe", "aqua": "AQUA",
    "blitzscale": "BlitzScale", "distserve": "DistServe", "aegaeon": "Aegaeon",
    "serverlessllm": "ServerlessLLM", "muxserve": "MuxServe", "dedicated": "vLLM, 4 models",
}  # fmt: skip
HALVES = {
    "burst": (
        "matrix_burst_h100", "matrix_burst_h100_beyond", "matrix_burst_h100_apart",
        "matrix_burst_a100",
    ),
    "many": (
        "matrix_many_h100", "matrix_many_h100_beyond", "matrix_many_h100_below",
        "matrix_many_a100",
    ),
}  # fmt: skip
RATE = "workload.scale.rate"
SEARCH = Search(
    RATE, (0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 4.5, 5.0), share="request"
)
REFERENCE = "dedicated"  # has fewer models than the others, so is in no order with them
COUNTERS = ("preemptions", "drops", "scale_ups", "switches", "moves", "leases")
HEAD = [
    "workload", "system", *(f"{name}: {what}" for name in HARDWARE.values()
    for what in ("goodput (req/s)", "P99 TTFT (s)", "GPU s")),
]  # fmt: skip

Of = Mapping[tuple[str, str, str], Cell]


def searches(experiments: tuple[str, ...]) -> dict[str, Search]:
    return {name: SEARCH for name in experiments if name.startswith("matrix_burst_h100")}


def pooled(found: Of, hardware: str, workload: str) -> dict[str, Cell]:
    """The cells of a workload that are compared."""
    return {
        system: cell
        for (on, of, system), cell in found.items()
        if (on, of) == (hardware, workload) and system != REFERENCE
    }


def title(workload: str) -> str:
    return WORKLOADS[workload.removesuffix(SLOW)]


def words(rows: pd.DataFrame) -> list[list[str]]:
    """The table of a half: its page has these cells. `=`: ties with the best; `*`: the best."""
    found = cells(rows)
    lines = []
    for workload in dict.fromkeys(rows.workload):
        for system in dict.fromkeys(rows.system):
            line = [title(workload), SYSTEMS[system]]
            for hardware in HARDWARE:
                cell = found.get((hardware, workload, system))
                line += (
                    ["", "", ""] if cell is None else _cell_words(found, hardware, workload, system)
                )
            lines.append(line)
    return lines


def _cell_words(found: Of, hardware: str, workload: str, system: str) -> list[str]:
    cell, compared = found[hardware, workload, system], pooled(found, hardware, workload)
    mark = ""
    if system in compared:
        mark = " *" if system == leader(compared) else " =" if system in leaders(compared) else ""
    return [
        cell.bound + _plus_minus(cell.over_seeds) + mark,
        _plus_minus(cell.ttft_p99_s),
        _plus_minus(cell.gpu_s),
    ]


def _plus_minus(found: Interval) -> str:
    return f"{found.mean:.3g} ± {found.half or 0.0:.2g}"


def table_of(half: str) -> PaperFigure:
    def table(rows: pd.DataFrame) -> tuple[Words, str]:
        return words(rows), (
            "Mean and 95 % interval over five paired seeds. * highest goodput, = tie with it. "
            "TTFT and GPU seconds at one load for all, of few requests a seed."
        )

    return text(
        f"matrix_table_{half}", of_runs, HALVES[half], head=HEAD, searches=searches(HALVES[half])
    )(table)


def map_of(half: str, said: str) -> PaperFigure:
    def drawn(axes: Panels, rows: pd.DataFrame) -> str:
        found = cells(rows)
        for panel, hardware in zip(axes, HARDWARE, strict=True):
            _map(
                panel,
                found,
                hardware,
                list(dict.fromkeys(rows.workload)),
                list(dict.fromkeys(rows.system)),
            )
        return said

    return picture(
        f"matrix_{half}", of_runs, HALVES[half], searches=searches(HALVES[half]), shape=(2, 1),
        size=(3.5, 4.2),
    )(drawn)  # fmt: skip


def _map(panel: Axes, found: Of, hardware: str, workloads: list[str], systems: list[str]) -> None:
    """Goodput over the best of its column, in grey, and in figures."""
    shares = np.full((len(systems), len(workloads)), np.nan)
    for x, workload in enumerate(workloads):
        compared = pooled(found, hardware, workload)
        if not compared:
            continue
        best, tie = compared[leader(compared)].mean, leaders(compared)
        for y, system in enumerate(systems):
            cell = found[hardware, workload, system]
            shares[y, x] = min(cell.mean / best, 1.0)
            mark = "=" if system in tie and len(tie) > 1 else "*" if system in tie else ""
            dark = "white" if shares[y, x] > 0.55 else "black"
            panel.text(
                x,
                y,
                f"{cell.bound}{cell.mean:.3g}{mark}",
                color=dark,
                ha="center",
                va="center",
                fontsize=7,
            )
    panel.imshow(shares, cmap="Greys", vmin=0, vmax=1.3, aspect="auto")
    panel.set_xticks(range(len(workloads)), [title(each) for each in workloads])
    panel.set_yticks(range(len(systems)), [SYSTEMS[each] for each in systems])
    panel.set(title=f"goodput (requests/s), four {HARDWARE[hardware]}")
    panel.grid(False)


burst = map_of(
    "burst",
    "Highest rate at which 90 % of requests meet MLPerf's SLO (TTFT 2 s, 200 ms a token). "
    "Darker: more of the column's best. * best, = within the simulator's band of it; < ≥: bound.",
)
many = map_of(
    "many",
    "Twelve models; 90 % of requests within Aegaeon's SLO (TTFT 10 s, 100 ms a token). Darker: "
    "more of the column's best. * best, = within the simulator's band of it; < ≥: bound.",
)
table_burst, table_many = table_of("burst"), table_of("many")


def tuned(rows: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    """By half, hardware and system, the setting with most requests on time, to two digits; among
    equals the one that holds GPUs for less time, then the one with the shorter P99 TTFT."""
    rows = rows.assign(share=rows.request.round(2))
    best = rows.sort_values(["share", "gpu_s", "ttft_p99_s"], ascending=[False, True, True])
    return {
        (str(half), str(hardware), str(system)): str(of_system.setting.iloc[0])
        for (half, hardware, system), of_system in best.groupby(["half", "hardware", "system"])
    }


TUNING = tuple(f"matrix_tune_{half}_{each}" for half in HALVES for each in HARDWARE)


@text(
    "matrix_tuning", of_runs, TUNING,
    head=["half", "GPUs", "system", "share on time by setting", "taken"],
)  # fmt: skip
def tuning(rows: pd.DataFrame) -> tuple[Words, str]:
    lines = []
    for (half, hardware, system), setting in tuned(rows).items():
        chosen = (rows.half == half) & (rows.hardware == hardware) & (rows.system == system)
        shares = rows[chosen].set_index("setting").request
        told = ", ".join(f"{_knob(name)}: {share:.3f}" for name, share in shares.items())
        lines.append([half, HARDWARE[hardware], SYSTEMS[system], told, _knob(setting)])
    return lines, "Azure code, one seed that no cell has, one load. Requests within the half's SLO."


def _knob(setting: object) -> str:
    return str(setting).partition("_")[2].replace("_", "+")


CHANGES = {
    "matrix_links_many": "links", "matrix_links_burst": "links", "matrix_kv_burst": "9.4 GB of KV",
    "matrix_models": "20 models",
}  # fmt: skip
LINKS = "experiment/matrix/links@_global_"
SPEEDS = {"half": "links half as fast", "double": "links twice as fast"}


def of_sensitivity(points: Points) -> pd.DataFrame:
    """A row for each run; `change`: what differs from the cells."""
    made = [point for point in points if point.path is not None]
    links = [SPEEDS.get(point.overrides.get(LINKS, "")) for point in made]
    changes = [link or CHANGES[point.experiment] for link, point in zip(links, made, strict=True)]
    return of_runs(made).assign(change=changes)


@text(
    "matrix_sensitivity", of_sensitivity, tuple(CHANGES),
    head=["change", "workload", "system", "goodput (req/s)", "switches", "preemptions", "drops"],
)  # fmt: skip
def sensitivity(rows: pd.DataFrame) -> tuple[Words, str]:
    return changed(rows), "H100, five seeds. Counters: mean of a run at the highest load."


def changed(rows: pd.DataFrame) -> list[list[str]]:
    lines = []
    for change, of_change in rows.groupby("change"):
        for (_, workload, system), cell in cells(of_change).items():
            of_cell = of_change[of_change.system == system]
            most = of_cell[of_cell.rate == of_cell.rate.max()]
            counts = [f"{most[name].mean():.0f}" for name in ("switches", "preemptions", "drops")]
            goodput = cell.bound + _plus_minus(cell.over_seeds)
            lines.append([str(change), title(workload), SYSTEMS[system], goodput, *counts])
    return lines
