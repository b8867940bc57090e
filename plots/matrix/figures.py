"""The figures of docs/matrix.md: goodput as a map, all cells as tables, the settings, what they
depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.records.interval import Interval, interval
from plots.figure import Panels, PaperFigure, Points, Words, picture, text
from plots.matrix.cells import HARDWARE, SLOW, WORKLOADS, Cell, cells, leader, leaders, of_runs

SYSTEMS = {
    "vllm": "vLLM", "llumnix": "Llumnix", "kunserve": "KunServe", "aqua": "AQUA",
    "blitzscale": "BlitzScale", "distserve": "DistServe", "aegaeon": "Aegaeon",
    "serverlessllm": "ServerlessLLM", "muxserve": "MuxServe", "dedicated": "vLLM, 4 models",
}  # fmt: skip
HALVES = {
    "burst": (
        "matrix_burst_h100", "matrix_burst_a100", "matrix_above_h100_between", "matrix_above_h100",
        "matrix_above_a100", "matrix_burst_a100_burstgpt", "matrix_burst_a100_sharegpt",
    ),
    "many": (
        "matrix_many_h100", "matrix_many_h100_below", "matrix_many_h100_above", "matrix_many_a100",
        "matrix_many_a100_above", "matrix_many_a100_below",
    ),
}  # fmt: skip
REFERENCE = "dedicated"  # has fewer models than the others, so is in no order with them
RESULTS = ("goodput (req/s)", "P99 TTFT (s)", "GPU s")
COUNTERS = ("preemptions", "drops", "scale_ups", "switches", "moves")
SETTINGS = ["half", "GPUs", "system", "share on time by setting", "taken"]
QUICK = {  # the runs of `reproduce`'s quick tier: two loads, COMMON's among them
    "experiment/matrix/workload@_global_": ("burstgpt", "burstgpt_slow"),
    "workload.scale.rate": ("0.5", "1.0", "2.0"),
}
WHITE_FROM = 0.8  # share of the best, above which a cell is too dark for black words
CHANGED = ["system", "with", "share on time", "P99 TTFT (s)", *COUNTERS]

Of = Mapping[tuple[str, str, str], Cell]


def pooled(found: Of, hardware: str, workload: str) -> dict[str, Cell]:
    """The cells of a workload that are compared."""
    return {
        system: cell
        for (on, of, system), cell in found.items()
        if (on, of) == (hardware, workload) and system != REFERENCE
    }


def title(workload: str) -> str:
    return WORKLOADS[workload.removesuffix(SLOW)]


def head(rows: pd.DataFrame) -> list[str]:
    on = [HARDWARE[name] for name in dict.fromkeys(rows.hardware)]
    return ["workload", "system", *(f"{name}: {what}" for name in on for what in RESULTS)]


def words(rows: pd.DataFrame) -> list[list[str]]:
    """The table of a half: its page has these cells. `=`: ties with the best; `*`: the best."""
    found = cells(rows)
    lines = []
    for workload in dict.fromkeys(rows.workload):
        for system in dict.fromkeys(rows.system):
            line = [title(workload), SYSTEMS[system]]
            for hardware in dict.fromkeys(rows.hardware):
                line += _cell_words(found, str(hardware), str(workload), str(system))
            lines.append(line)
    return lines


def _cell_words(found: Of, hardware: str, workload: str, system: str) -> list[str]:
    cell, compared = found[hardware, workload, system], pooled(found, hardware, workload)
    goodput = cell.bound + _plus_minus(cell.over_seeds) + mark(compared, system)
    return [goodput, _plus_minus(cell.ttft_p99_s), _plus_minus(cell.gpu_s)]


def _plus_minus(found: Interval) -> str:
    return f"{found.mean:.3g} ± {found.half or 0.0:.2g}"


def map_of(half: str, said: str, height: float, hardware: Sequence[str]) -> PaperFigure:
    def drawn(axes: Panels, rows: pd.DataFrame) -> str:
        names = [list(dict.fromkeys(rows[column])) for column in ("workload", "system")]
        for panel, on in zip(axes, hardware, strict=True):
            _map(panel, cells(rows), on, *names)
        return said

    shape, size = (len(hardware), 1), (3.5, height)
    return picture(
        f"matrix_{half}", of_runs, HALVES[half], shape=shape, size=size, quick=("rows", QUICK)
    )(drawn)


def _map(panel: Axes, found: Of, hardware: str, workloads: list[str], systems: list[str]) -> None:
    """Goodput over the best of its column, in grey, and in figures; the reference has no grey."""
    shares = np.zeros((len(systems), len(workloads)))
    for x, workload in enumerate(workloads):
        compared = pooled(found, hardware, workload)
        best = compared[leader(compared)].mean
        for y, system in enumerate(systems):
            cell = found[hardware, workload, system]
            shares[y, x] = min(cell.mean / best, 1.0) if system in compared else 0.0
            said = f"{cell.bound}{cell.mean:.3g}{mark(compared, system)}"
            panel.text(
                x, y, said, color="white" if shares[y, x] > WHITE_FROM else "black", ha="center",
                va="center", fontsize=7,
            )  # fmt: skip
    panel.imshow(shares, cmap="Greys", vmin=0, vmax=1.3, aspect="auto")
    if REFERENCE in systems:
        top = systems.index(REFERENCE) - 0.5  # the last row
        panel.axhspan(top, top + 1, fill=False, hatch="////", ec="0.85", lw=0)
        panel.axhline(top, color="black", lw=2)
    panel.set_xticks(range(len(workloads)), [title(each) for each in workloads], fontsize=7)
    panel.set_yticks(range(len(systems)), [SYSTEMS[each] for each in systems], fontsize=7.5)
    panel.set_title(f"goodput at 90 % attainment,\nsimulated req/s, four {HARDWARE[hardware]}")
    panel.grid(False)


def mark(compared: Mapping[str, Cell], system: str) -> str:
    """` *`: the highest goodput, which may be a bound; ` =`: ties with it; ` ?`: a lower bound
    below it, in no order with it."""
    if system == leader(compared):
        return " *"
    if system in leaders(compared):
        return " ="
    return " ?" if system in compared and compared[system].bound == "≥" else ""


BOUNDS = "* best, = tie, < ≥ bounds, ? no order."
burst = map_of("burst", f"Within MLPerf's SLO. {BOUNDS}", 4.5, ("h100", "a100"))
NO_ORDER = "Hatched: a reference of fewer models, not in the order."
many = map_of("many", f"Within Aegaeon's SLO. {BOUNDS} {NO_ORDER}", 3.9, ("h100", "a100"))


def above(rows: pd.DataFrame) -> list[list[str]]:
    """What the highest loads of ShareGPT changed."""
    high = rows[rows.experiment.str.startswith("matrix_above")]
    loads = high.hardware.map(HARDWARE) + " at " + high.rate.map("{:g} x the base rate".format)
    return changed(high.assign(change=loads))


def tuned(rows: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    """By half, hardware and system, the setting with most requests on time; among equals the one
    that holds GPUs for less time, then the one with the shorter P99 TTFT."""
    best = rows.sort_values(["request", "gpu_s", "ttft_p99_s"], ascending=[False, True, True])
    return {
        (str(half), str(hardware), str(system)): str(of_system.setting.iloc[0])
        for (half, hardware, system), of_system in best.groupby(["half", "hardware", "system"])
    }


TUNING = (
    "matrix_tune_burst_h100", "matrix_tune_burst_a100",
    "matrix_tune_many_h100", "matrix_tune_many_a100",
)  # fmt: skip


@text("matrix_tuning", of_runs, TUNING, head=SETTINGS)
def tuning(rows: pd.DataFrame) -> tuple[Words, str]:
    said = "Azure code, one seed that no cell has, one load. Requests within the half's SLO."
    return settings(rows), said


def settings(rows: pd.DataFrame) -> list[list[str]]:
    lines = []
    for (half, hardware, system), setting in tuned(rows).items():
        chosen = (rows.half == half) & (rows.hardware == hardware) & (rows.system == system)
        shares = rows[chosen].set_index("setting").request
        told = ", ".join(f"{_knob(name)}: {share:.3f}" for name, share in shares.items())
        lines.append([half, HARDWARE[hardware], SYSTEMS[system], told, _knob(setting)])
    return lines


def _knob(setting: object) -> str:
    return str(setting).partition("_")[2].replace("_", "+")


LINKS = "experiment/matrix/links@_global_"
SPEEDS = {
    "as_is": "links as they are", "half": "links half as fast", "double": "links twice as fast",
}  # fmt: skip


def of_sensitivity(points: Points) -> pd.DataFrame:
    """A row for each run; `change`: what differs from the cells, or what they have."""
    made = [point for point in points if point.path is not None]
    return of_runs(made).assign(change=[SPEEDS[point.overrides[LINKS]] for point in made])


LINKED = (
    "matrix_links_many", "matrix_links_burst",
    "matrix_links_many_others", "matrix_links_burst_others",
)  # fmt: skip
OF_LINKS = ["system", "workload", *CHANGED[1:]]


@text("matrix_sensitivity", of_sensitivity, LINKED, head=OF_LINKS)
def sensitivity(rows: pd.DataFrame) -> tuple[Words, str]:
    said = "Four H100, factor 2.0, five seeds. Twelve models; BlitzScale: one. Counters: means."
    return by_links(rows), said


def by_links(rows: pd.DataFrame) -> list[list[str]]:
    """Of each system its workloads, of each of them the links."""
    lines = []
    for (_, workload), each in rows.groupby(["system", "workload"], sort=False):
        lines += [[name, title(str(workload)), *line] for name, *line in changed(each)]
    return lines


def changed(rows: pd.DataFrame) -> list[list[str]]:
    lines = []
    for (system, change), each in rows.groupby(["system", "change"], sort=False):
        on_time, ttft_s = (interval(each[name].tolist()) for name in ("request", "ttft_p99_s"))
        counts = [f"{each[name].mean():.0f}" for name in COUNTERS]
        name = SYSTEMS[str(system)]
        lines.append([name, str(change), _plus_minus(on_time), _plus_minus(ttft_s), *counts])
    return lines
