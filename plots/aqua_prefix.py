"""A hit on a cached prefix of 100,000 tokens (section 9.3, Fig. 9 (a)), by the cost model and the
links of the hardware profile: no run, one request alone on the device.

The prefix comes whole before the batch runs, as the paper's paging does, then the last tokens of
the prompt are computed. Requests that wait behind it are not in this.
"""

from __future__ import annotations

import pandas as pd
from hydra import compose

from harness.cost.model import CostModel
from harness.device.location import Location, dram, hbm
from harness.device.topology import Topology
from harness.model_spec import ModelSpec
from harness.sim.fabric import alone, issued_pace
from plots.aqua_table_bandwidth import hardware, model

PROMPT_TOKENS, SUFFIX_TOKENS = 100_000, 256  # section 9.1
CHUNK_TOKENS, BLOCK_TOKENS = 512, 16  # sections 4.1 and 9.3; vLLM's
HARDWARE, MODEL = "h100x8", "yi-34b-200k"


def prefix_bytes(spec: ModelSpec) -> int:
    """KV of the cached tokens, of each device."""
    tokens = PROMPT_TOKENS - SUFFIX_TOKENS
    return tokens * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 2 // spec.tp


def copy_s(num_bytes: int, source: Location, message_bytes: int | None) -> float:
    """To the device at (0, 0); messages issued one behind the other. None: gathered into one, which
    is scattered by a pass over the device's memory."""
    device = hardware(HARDWARE)
    path = Topology(device).path(source, hbm(0, 0))
    if message_bytes is None:
        achieved = device.memory_bandwidth_bytes_per_s * device.calibration.memory_efficiency
        scatter_s = 2 * num_bytes / achieved
        return path.latency_s + num_bytes / alone(path) + scatter_s
    pace = issued_pace(path, num_bytes, message_bytes, issue_s())
    return path.latency_s + num_bytes / min(pace.bytes_per_s, alone(path))


def issue_s() -> float:
    """Between copies that are issued one behind another."""
    return float(compose("config", ["+system=aqua"])["system"]["copy_issue_s"])


def hits() -> pd.DataFrame:
    """Seconds of loading and of computing until the first token, and of the first time."""
    spec = model(MODEL)
    cost = CostModel(spec, hardware(HARDWARE))
    starts = range(0, PROMPT_TOKENS, CHUNK_TOKENS)
    whole_s = sum(
        cost.mixed_step([(at, min(CHUNK_TOKENS, PROMPT_TOKENS - at))], 0, 0) for at in starts
    )
    rest_s = cost.mixed_step([(PROMPT_TOKENS - SUFFIX_TOKENS, SUFFIX_TOKENS)], 0, 0)
    size = prefix_bytes(spec)
    # Keys or values of a block's tokens in a layer, as vLLM's swap copies them.
    block = BLOCK_TOKENS * spec.num_kv_heads // spec.tp * spec.head_dim * 2
    rows = [
        {"system": "first", "load_s": 0.0, "compute_s": whole_s},
        {"system": "cfs_dram", "load_s": copy_s(size, dram(0), block), "compute_s": rest_s},
        {"system": "cfs_dram_gathered", "load_s": copy_s(size, dram(0), None),
         "compute_s": rest_s},
        {"system": "aqua", "load_s": copy_s(size, hbm(0, 1), None), "compute_s": rest_s},
    ]  # fmt: skip
    table = pd.DataFrame(rows).assign(row="hit", seed=0, inputs="ours")
    return table.assign(ttft_s=table.load_s + table.compute_s)
