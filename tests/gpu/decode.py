"""How long a decode step of a model takes on a GPU, and how long its bytes alone would, with each
attention that is installed.

    python -m tests.gpu.decode --model llama3.1-8b --hardware h100x1 --json decode.json

Random weights, every request at the same context. The floor: weights and KV read once, at the
memory bandwidth of the profile's datasheet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from harness.calibrate import zoo
from harness.engine.attention_choice import kernels_of
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.cuda import device_name, finish_all, pick_device
from harness.engine.kv_cache import new_cache
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.runner import Runner
from harness.engine.work import BatchWork
from harness.files import write_json
from harness.model_spec import ModelSpec

BLOCK_TOKENS, CONTEXT, STEPS = 16, 512, 32
REQUESTS = (1, 16, 64)


def floor_s(spec: ModelSpec, num_requests: int, bytes_per_s: float) -> float:
    kv_bytes = num_requests * (CONTEXT + STEPS / 2) * spec.kv_bytes_per_token
    return (spec.weight_bytes + kv_bytes) / bytes_per_s


def step_s(runner: Runner, device: torch.device, num_requests: int) -> float:
    """The median step; the first few are left out."""
    per_request = -(-(CONTEXT + STEPS) // BLOCK_TOKENS)
    blocks = [
        list(range(first, first + per_request))
        for first in range(FIRST_BLOCK, FIRST_BLOCK + num_requests * per_request, per_request)
    ]
    work = BatchWork([], [CONTEXT] * num_requests, [1] * num_requests, blocks)
    finish_all(device)
    times_s = [perf_counter() for _ in runner.steps(work, STEPS)]  # its tokens are on the host
    return median(b - a for a, b in pairwise(times_s[4:]))


def attentions() -> list[str]:
    return ["torch", *(["flashinfer"] if find_spec("flashinfer") else [])]


def measure(spec: ModelSpec, hardware: str) -> Iterator[dict[str, Any]]:
    """What was measured so far, after each attention: a later one may fail."""
    device = pick_device("auto", 0)
    layers = LoadedLayers(spec, device, kernels_of("torch", spec, device).linear)
    num_blocks = max(REQUESTS) * -(-(CONTEXT + STEPS) // BLOCK_TOKENS)
    cache = new_cache(spec, num_blocks, BLOCK_TOKENS, device)
    bytes_per_s = zoo.hardware(hardware).memory_bandwidth_bytes_per_s
    steps: list[dict[str, Any]] = []
    for attention in attentions():
        decoder = TransformerDecoder(spec, layers.ends, kernels_of(attention, spec, device))
        runner = Runner(spec, decoder, layers.on_device, cache, device)
        steps += [
            {
                "attention": attention, "num_requests": n, "step_s": step_s(runner, device, n),
                "floor_s": floor_s(spec, n, bytes_per_s),
            }
            for n in REQUESTS
        ]  # fmt: skip
        yield {
            "model": spec.name, "dtype": spec.dtype, "device": device_name(device),
            "torch": torch.__version__, "context_tokens": CONTEXT, "num_steps": STEPS,
            "steps": steps,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--json", type=Path, required=True)
    chosen = parser.parse_args()
    for found in measure(zoo.model(chosen.model), chosen.hardware):
        write_json(chosen.json, found)
    for row in found["steps"]:
        print(
            f"{row['attention']}, {row['num_requests']:3} requests: {row['step_s'] * 1e3:.2f} ms "
            f"a step, {row['floor_s'] * 1e3:.2f} ms to read the bytes"
        )


if __name__ == "__main__":
    main()
