"""How fast one instance computes on this machine, with no system and no request.

`python -m harness.engine.machine_speed SPEC DEVICE THREADS ATTENTION` prints a `Speed` as JSON in a
few seconds. SPEC: a ModelSpec's values as JSON; DEVICE and ATTENTION as in conf/engine. Of a model
with ranks it is one rank's, which adds up nothing with the others.
"""

from __future__ import annotations

import json
import sys

import torch

from harness.engine.attention_choice import kernels_of
from harness.engine.cuda import pick_device
from harness.engine.kv_cache import new_cache
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.runner import Runner
from harness.engine.shards import rank_spec
from harness.engine.transport import of_kind
from harness.engine.warm_speed import timed
from harness.model_spec import ModelSpec

NUM_BLOCKS, BLOCK_TOKENS = 64, 16


def main(spec: ModelSpec, device_name: str, num_threads: int, attention: str) -> None:
    torch.set_num_threads(num_threads)
    device = pick_device(device_name, 0)
    own = rank_spec(spec)
    kernels = kernels_of(attention, own, device)
    layers = LoadedLayers(spec, device, kernels.linear)
    cache = new_cache(own, NUM_BLOCKS, BLOCK_TOKENS, device)
    decoder = TransformerDecoder(own, layers.ends, kernels)
    runner = Runner(own, decoder, layers.on_device, cache, device)
    print(json.dumps(timed(runner, own, NUM_BLOCKS, BLOCK_TOKENS)))


if __name__ == "__main__":
    main(of_kind(ModelSpec, json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3]), sys.argv[4])
