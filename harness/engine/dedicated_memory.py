"""A device that has one model for good: its weights packed for the matmul, its KV in one piece for
each layer.
"""

from __future__ import annotations

import torch

from harness.engine.attention_choice import kernels_of
from harness.engine.command_loop import CommandLoop, Work
from harness.engine.config import TorchConfig
from harness.engine.cuda import bytes_left
from harness.engine.kv_cache import block_bytes, new_cache
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.runner import Runner
from harness.engine.transport import Header, of_kind
from harness.engine.warm_up import warm_up
from harness.model_spec import ModelSpec


class DedicatedMemory:
    def __init__(self, loop: CommandLoop, setup: Header) -> None:
        self._loop = loop
        device, config = loop.device, setup["config"]
        spec = of_kind(ModelSpec, setup["spec"])
        kernels = kernels_of(config.attention, spec, device)
        self._layers = LoadedLayers(spec, device, kernels.linear)
        num_blocks = config.num_kv_blocks or fitting_blocks(
            spec, device, config, setup["num_workers"]
        )
        cache = new_cache(spec, num_blocks, config.block_tokens, device)
        decoder = TransformerDecoder(spec, self._layers.ends, kernels)
        self._runner = Runner(spec, decoder, self._layers.on_device, cache, device)
        warm_up(spec, self._layers.on_device[0], self._layers.ends, device, setup["warm_up_tokens"])
        self.ready = {"num_kv_blocks": num_blocks, "attention": kernels.name}
        self.in_streams = {"execute": self._execute, "reload": self._reload}
        self.at_once: dict[str, Work] = {}

    def _execute(self, header: Header) -> None:
        self._loop.execute(header, self._runner)

    def _reload(self, header: Header) -> None:
        """The weights come anew from host memory, which the calibration measures."""
        self._layers.load()
        self._loop.answer(header["seq"])


def fitting_blocks(
    spec: ModelSpec, device: torch.device, config: TorchConfig, num_workers: int
) -> int:
    """KV blocks that fit beside the weights; MemoryError where none does."""
    size = block_bytes(spec, config.block_tokens)
    of_gpu = bytes_left(device, config.memory_fraction, num_workers)
    memory = config.cpu_kv_bytes if of_gpu is None else of_gpu
    if memory < size:
        raise MemoryError(f"no room for a KV block of {size} bytes: {memory} bytes are left")
    return memory // size
