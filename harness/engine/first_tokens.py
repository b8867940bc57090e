"""What a model answers to prompts, with no system, no worker and no request: the first token.

`python -m harness.engine.first_tokens SPEC` reads a JSON list of prompts, each a list of token ids,
from standard input, and prints the id that it picks after each. On a CPU, one prompt at a time.
SPEC: a ModelSpec's values as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import torch

from harness.engine.attention_choice import kernels_of
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.kv_cache import new_cache
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.runner import Runner
from harness.engine.transport import of_kind
from harness.engine.work import BatchWork, Chunk
from harness.model_spec import ModelSpec

BLOCK_TOKENS = 16


def main(spec: ModelSpec, prompts: Sequence[Sequence[int]]) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    kernels = kernels_of("torch", spec, device)
    layers = LoadedLayers(spec, device, kernels.linear)
    num_blocks = -(-max(map(len, prompts)) // BLOCK_TOKENS)
    cache = new_cache(spec, num_blocks, BLOCK_TOKENS, device)
    decoder = TransformerDecoder(spec, layers.ends, kernels)
    runner = Runner(spec, decoder, layers.on_device, cache, device)
    blocks = list(range(FIRST_BLOCK, FIRST_BLOCK + num_blocks))
    picked: list[int] = []
    for ids in prompts:
        for tokens in runner.steps(BatchWork([Chunk(0, len(ids), True)], [], ids, [blocks]), 1):
            picked += tokens
    print(json.dumps(picked))


if __name__ == "__main__":
    main(of_kind(ModelSpec, json.loads(sys.argv[1])), json.load(sys.stdin))
