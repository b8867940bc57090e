"""Numbers that the paper names, by our models, profiles and workloads: bandwidth by the size of a
copy (section 7), and sizes and ratios."""

from __future__ import annotations

import pandas as pd

from harness.device.location import dram, hbm
from harness.device.topology import Topology
from harness.sim.fabric import alone
from plots.aqua import requests
from plots.conf import hardware, spec
from plots.figure import Panels, Points, Words, picture, text
from plots.panels import Look, lines
from plots.runs import overrides
from plots.style import PALETTE, log_scale
from systems.aqua.profiler.profile import context_bytes

SIZES = [2**k for k in range(14, 31)]  # 16 KiB to 1 GiB
PUBLISHED = {4e6: 50.0, 64e6: 200.0}  # GB/s between two A100 (section 7)
LOOKS = {
    "h100x8, NVLink": Look("H100, NVLink", PALETTE[2]),
    "h100x8, PCIe": Look("H100, PCIe", PALETTE[2], line="--"),
    "a100x2, NVLink": Look("A100, NVLink", PALETTE[0]),
    "a100x2, PCIe": Look("A100, PCIe", PALETTE[0], line="--"),
    "published": Look("A100, published", "k", "x"),
}


def bandwidths(points: Points) -> pd.DataFrame:
    rows = []
    for name in ("h100x8", "a100x2"):
        path = Topology(hardware(name)).path
        for link, end in (("NVLink", hbm(0, 1)), ("PCIe", dram(0))):
            for size in SIZES:
                rate = size / path(hbm(0, 0), end).time_s(size) / 1e9
                rows.append({"series": f"{name}, {link}", "bytes": size, "gb_per_s": rate})
    ours = pd.DataFrame(rows).assign(inputs="ours")
    published = pd.DataFrame(PUBLISHED.items(), columns=["bytes", "gb_per_s"])
    return pd.concat([ours, published.assign(series="published", inputs="paper")]).assign(seed=0)


@picture("aqua_table_bandwidth", bandwidths, size=(6.5, 3.8), legend=3)
def table_bandwidth(axes: Panels, rows: pd.DataFrame) -> str:
    """Section 7: what a copy's size makes of a link's bandwidth, by the hardware profiles."""
    (panel,) = axes
    lines(panel, rows.assign(mb=rows.bytes / 1e6), "mb", "gb_per_s", LOOKS, by="series")
    log_scale(panel, "x")
    log_scale(panel, "y")
    panel.set(xlabel="MB in one message", ylabel="GB/s", title="paging bandwidth by size")
    return "By the latencies and rates of the hardware profiles; no run."


LONG_PROMPT_TOKENS, CHUNK_TOKENS = 8192, 512  # sections 9.1, 4.1
PRINTED = {"h100x8": 450 / 50, "a100x2": 300 / 25}  # NVLink over PCIe (section 9)
# Whose the copy rates of a hardware profile are: NCCL's, measured, or section 7's
RATES_OF = {"h100x8": "ours", "a100x2": "paper"}
LLAMA_405B = 405e9  # its parameters, of 2 bytes


def sizes(points: Points) -> pd.DataFrame:
    return pd.DataFrame([*arithmetic(), *medians(points)])


def arithmetic() -> list[dict[str, object]]:
    opt, llama = spec("opt-30b"), spec("llama3.1-70b")
    rows: list[dict[str, object]] = []
    for name, inputs in RATES_OF.items():
        path = Topology(hardware(name)).path
        ratio = alone(path(hbm(0, 0), hbm(0, 1))) / alone(path(hbm(0, 0), dram(0)))
        quantity = f"NVLink over PCIe, copies, {name}"
        rows.append({"quantity": quantity, "value": ratio, "unit": "x", "inputs": inputs})
        printed = {"quantity": f"NVLink over PCIe, printed, {name}", "value": PRINTED[name]}
        rows.append(printed | {"unit": "x", "inputs": "paper"})
    swap_gb = context_bytes(1, LONG_PROMPT_TOKENS, opt.kv_bytes_per_token) / 1e9
    reduced_mb = CHUNK_TOKENS * llama.hidden_size * llama.dtype_bytes / 1e6
    llama_gb = 2 * LLAMA_405B / 1e9
    rows += [
        {"quantity": "weights of Llama-405B", "value": llama_gb, "unit": "GB", "inputs": "paper"},
        {"quantity": "swap space of OPT-30B, 8,192 tokens", "value": swap_gb, "unit": "GB"},
        {"quantity": "all-reduce of Llama-3.1-70B", "value": reduced_mb, "unit": "MB"},
    ]
    return [{"inputs": "ours", "seed": 0} | row for row in rows]


def medians(points: Points) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, label in (("aqua_fig08", "ShareGPT"), ("aqua_fig13", "arXiv")):
        for point in points:
            if point.experiment == name and overrides(point)["system"] == "fcfs":
                median = requests(point).prompt_tokens.median()
                row = {"quantity": f"median prompt, {label}", "unit": "tokens", "value": median}
                rows.append(row | {"seed": point.seed, "config_hash": point.config_hash()})
    return rows


@text(
    "aqua_table_sizes", sizes, ("aqua_fig08", "aqua_fig13"), head=["quantity", "ours", "unit"],
    quick="rows",
)  # fmt: skip
def table_sizes(rows: pd.DataFrame) -> tuple[Words, str]:
    """Sizes and ratios by arithmetic, and the prompts of Figs. 8's and 13's schedules."""
    cells = [
        [str(quantity), f"{of.value.mean():,.4g}", of.unit.iloc[0]]
        for quantity, of in rows.groupby("quantity", sort=False)
    ]
    return cells, "Medians of the schedules' prompts, mean of the seeds; arXiv's scaled."
