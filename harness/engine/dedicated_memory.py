"""A device that has one model for good, or a rank's part of it: its weights packed for the matmul,
its KV in one piece for each layer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from harness.engine.attention_choice import kernels_of
from harness.engine.command_loop import CommandLoop, Work
from harness.engine.config import TorchConfig
from harness.engine.cuda import bytes_left
from harness.engine.kv_cache import block_bytes, new_cache
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.ranks import RankRunner, join, sum_products
from harness.engine.runner import Runner
from harness.engine.shards import rank_spec
from harness.engine.transport import Header, of_kind
from harness.engine.warm_up import warm_up
from harness.model_spec import ModelSpec

NAMED_S = 5.0  # until then the harness knows which rank of an instance died, and has ended the rest


class DedicatedMemory:
    """`files`: those that this worker has open, by name."""

    def __init__(self, loop: CommandLoop, setup: Header, files: Mapping[str, int]) -> None:
        self._loop = loop
        device, config = loop.device, setup["config"]
        spec = of_kind(ModelSpec, setup["spec"])
        self._num_ranks, own = spec.tp, rank_spec(spec)
        kernels = kernels_of(config.attention, own, device)
        self._layers = LoadedLayers(spec, device, kernels.linear, setup["rank"])
        num_blocks = config.num_kv_blocks or fitting_blocks(
            spec, device, config, setup["num_workers"]
        )
        cache = new_cache(own, num_blocks, config.block_tokens, device)
        decoder = TransformerDecoder(own, self._layers.ends, kernels)
        warm_up(own, self._layers.on_device[0], self._layers.ends, device, setup["warm_up_tokens"])
        kind = Runner if spec.tp == 1 else RankRunner
        self._runner = kind(own, decoder, self._layers.on_device, cache, device)
        if spec.tp > 1:
            join(setup["rank"], spec.tp, files[setup["meeting"]], device)
            sum_products(self._layers.on_device.values())
        self.ready = {
            "num_kv_blocks": num_blocks, "attention": kernels.name,
            "weights_bytes": own.weight_bytes,
            "kv_bytes": num_blocks * block_bytes(own, config.block_tokens),
        }  # fmt: skip
        self.in_streams = {"execute": self._execute, "reload": self._reload}
        self.at_once: dict[str, Work] = {}

    def _execute(self, header: Header) -> None:
        try:
            self._loop.execute(header, self._runner)
        except RuntimeError:
            if self._num_ranks > 1:  # perhaps because another rank died
                time.sleep(NAMED_S)
            raise

    def _reload(self, header: Header) -> None:
        """The weights come anew from host memory, which the calibration measures."""
        self._layers.load()
        if self._num_ranks > 1:
            sum_products(self._layers.on_device.values())
        self._loop.answer(header["seq"])


def fitting_blocks(
    spec: ModelSpec, device: torch.device, config: TorchConfig, num_workers: int
) -> int:
    """KV blocks that fit beside the weights of each rank; MemoryError where none does. On a CPU the
    ranks share the memory of their instance."""
    size = block_bytes(rank_spec(spec), config.block_tokens)
    of_gpu = bytes_left(device, config.memory_fraction, num_workers)
    memory = config.cpu_kv_bytes // spec.tp if of_gpu is None else of_gpu
    if memory < size:
        raise MemoryError(f"no room for a KV block of {size} bytes: {memory} bytes are left")
    return memory // size
