"""Long contexts (section 9.3, Fig. 9): a hit on a cached prefix of 100,000 tokens, and KV of long
prompts that is streamed.

A hit is arithmetic by the cost model and the links of the hardware profile, one request alone on
the device, since 100,000 tokens are more than any run here has. The prefix comes whole before the
batch runs, as the paper's paging does, then the last tokens of the prompt are computed. Requests
that wait behind it are not in this.
"""

from __future__ import annotations

import pandas as pd
from hydra import compose

from harness.cost.model import CostModel
from harness.device.location import Location, dram, hbm
from harness.device.topology import Topology
from harness.experiments.points import Point
from harness.model_spec import ModelSpec
from harness.sim.fabric import alone, issued_pace
from plots.aqua import STREAMING, paged_gb, requests
from plots.conf import hardware, spec
from plots.figure import Panels, Points, picture
from plots.runs import config, overrides
from plots.style import PALETTE

PROMPT_TOKENS, SUFFIX_TOKENS = 100_000, 256  # section 9.1
CHUNK_TOKENS, BLOCK_TOKENS = 512, 16  # sections 4.1 and 9.3; vLLM's
HARDWARE, MODEL = "h100x8", "yi-34b-200k"
OVERLAP = {"on": "copies beside computing", "off": "copies, then computing"}
HITS = {
    "first": ("first time", PALETTE[7]), "cfs_dram": ("DRAM,\nblock by block", PALETTE[1]),
    "cfs_dram_gathered": ("DRAM,\ngathered", PALETTE[1]), "aqua": ("AQUA", PALETTE[2]),
}  # fmt: skip


def prefix_bytes(model: ModelSpec) -> int:
    """Bytes of each device's KV of the cached tokens."""
    return (PROMPT_TOKENS - SUFFIX_TOKENS) * model.kv_bytes_per_token // model.tp


def copy_s(num_bytes: int, source: Location, message_bytes: int | None) -> float:
    """Seconds of a copy from `source` to the device at (0, 0), with messages issued one behind the
    other. `message_bytes` None: gathered into one message, which is scattered by a pass over the
    device's memory."""
    device = hardware(HARDWARE)
    path = Topology(device).path(source, hbm(0, 0))
    if message_bytes is None:
        achieved = device.memory_bandwidth_bytes_per_s * device.calibration.memory_efficiency
        scatter_s = 2 * num_bytes / achieved
        return path.latency_s + num_bytes / alone(path) + scatter_s
    issue_s = float(compose("config", ["+system=aqua"])["system"]["copy_issue_s"])
    pace = issued_pace(path, num_bytes, message_bytes, issue_s)
    return path.latency_s + num_bytes / min(pace.bytes_per_s, alone(path))


def hits() -> pd.DataFrame:
    """Seconds of loading and of computing until the first token, and of the first time."""
    model = spec(MODEL)
    cost, size = CostModel(model, hardware(HARDWARE)), prefix_bytes(model)
    starts = range(0, PROMPT_TOKENS, CHUNK_TOKENS)
    whole_s = sum(
        cost.mixed_step([(at, min(CHUNK_TOKENS, PROMPT_TOKENS - at))], 0, 0) for at in starts
    )
    rest_s = cost.mixed_step([(PROMPT_TOKENS - SUFFIX_TOKENS, SUFFIX_TOKENS)], 0, 0)
    # Keys or values of a block's tokens in a layer, as vLLM's swap copies them.
    block = BLOCK_TOKENS * model.num_kv_heads // model.tp * model.head_dim * 2
    load_s = {
        "first": 0.0,
        "cfs_dram": copy_s(size, dram(0), block),
        "cfs_dram_gathered": copy_s(size, dram(0), None),
        "aqua": copy_s(size, hbm(0, 1), None),
    }
    table = pd.DataFrame(load_s.items(), columns=["system", "load_s"])
    table = table.assign(compute_s=rest_s, row="hit", seed=0, inputs="ours")
    table.loc[table.system == "first", "compute_s"] = whole_s
    return table.assign(ttft_s=table.load_s + table.compute_s)


def contexts(points: Points) -> pd.DataFrame:
    return pd.concat([pd.DataFrame([streamed(point) for point in points]), hits()])


def streamed(point: Point) -> dict[str, object]:
    """A run of equal long prompts, one at a time: nothing in it is random."""
    of, system = requests(point), overrides(point)["system"]
    end_s = (of.arrival_s + of.rct_s - of.arrival_s.min()).max()
    return {
        "row": "steady", "system": system, "seed": point.seed,
        "overlap": "on" if config(point.folder)["system"]["consumer"]["overlap"] else "off",
        "tokens_per_s": 1 / of.tpot_s.mean(), "config_hash": point.config_hash(),
        "with_prompts_tokens_per_s": of.output_tokens.sum() / end_s,
        "mechanism": paged_gb(point, system),
    }  # fmt: skip


@picture("aqua_fig09", contexts, ("aqua_fig09b",), shape=(1, 2), size=(9, 3.8), legend=3)
def fig09(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 9: TTFT of a hit on a cached prefix (a), and tokens/s of OPT-30B on a long prompt, KV
    streamed from DRAM and from a neighbour, with copies beside computing and without (b).

    What a hit costs the requests behind it is not in (a). The paper draws a run of 30 requests.
    """
    left, right = axes
    for k, (system, (_, colour)) in enumerate(HITS.items()):
        hit = rows[(rows.row == "hit") & (rows.system == system)].iloc[0]
        left.bar(k, hit.load_s, color=colour)
        computed = left.bar(k, hit.compute_s, bottom=hit.load_s, color=PALETTE[7])
        left.bar_label(computed, [f"{hit.ttft_s:.2g} s"])
    left.set_xticks(range(len(HITS)), [label for label, _ in HITS.values()])
    left.set(ylabel="TTFT (s)", title="(a) Yi-34B-200K, prefix of 100k tokens")
    computed.set_label("computed")
    for k, (system, look) in enumerate(STREAMING.items()):
        of = rows[(rows.row == "steady") & (rows.system == system)].set_index("overlap")
        at = [i + 0.4 * k for i in range(len(OVERLAP))]
        rates = of.tokens_per_s.reindex(list(OVERLAP))
        right.bar_label(right.bar(at, rates, 0.38, color=look.colour, label=look.label), fmt="%.1f")
    right.set_xticks([0.2, 1.2], list(OVERLAP.values()))
    right.set(ylabel="tokens/s after the first", title="(b) OPT-30B, 8,192 tokens")
    return (
        "(a): no run: cost model and links, a request alone, its prefix loaded (colour) before it "
        "runs. (b): equal prompts, one at a time; nothing is random. An idle neighbour lends."
    )
