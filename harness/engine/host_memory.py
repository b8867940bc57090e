"""This machine's memory as its pooled workers share it: weights in a model cache, and KV.

Files without a name, which workers inherit: in memory (memfd) or, for weights that are read from
the SSD, unlinked in the run's folder. However the run ends, nothing of them is left. Workers
write and read them; which model is cached, and which block is whose, is `harness.pooled.host`'s.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from harness.device.location import Location, Medium
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.pooled.host import ModelCache
from harness.pooled.plan import PoolConfig

NODE = 0  # all workers are on this machine


class HostMemory:
    """A host's files of weights and KV, closed by `stack`. Where the model cache is too small for
    all models, each of them has a file on the SSD as well. A model that
    `harness.pooled.host.ModelCache` lets go of keeps its pages until the end: it costs a load from
    the SSD again, but frees nothing."""

    def __init__(
        self, stack: ExitStack, models: Mapping[str, ModelSpec], config: PoolConfig, run_dir: Path
    ) -> None:
        sizes = {name: spec.weight_bytes for name, spec in models.items()}
        self.kv_file = memory_file(stack, "kv", config.host_kv_bytes)
        cache = ModelCache(NODE, config.model_cache_bytes)
        cache.warm(models.values())
        # the models whose bytes the cache has
        self.cached = {name for name, spec in models.items() if spec in cache}
        self._cache = {name: memory_file(stack, name, size) for name, size in sizes.items()}
        self._ssd: dict[str, int] = {}
        if len(self.cached) < len(models):
            self._ssd = {name: disk_file(stack, run_dir) for name in models}

    @property
    def files(self) -> list[int]:
        """All files, for workers to inherit."""
        return [self.kv_file, *self._cache.values(), *self._ssd.values()]

    def first_copies(self, model: str) -> list[int]:
        """The files that are to have the weights from the start."""
        files = [self._ssd[model]] if self._ssd else []
        return [*files, self._cache[model]] if model in self.cached else files

    def source(self, model: str, place: Location) -> tuple[int, int | None]:
        """The file to read `model` from, and the one in the cache to fill with it meanwhile.

        A model is read from the SSD until another load has filled its place in the cache.
        """
        if model not in self.cached:
            return self._ssd[model], self._cache[model]
        if place.medium is Medium.DRAM:
            return self._cache[model], None
        return self._ssd[model], None


def memory_file(stack: ExitStack, name: str, num_bytes: int) -> int:
    """A file in memory that workers inherit; UsageError where there are none."""
    if sys.platform != "linux":
        raise UsageError("engine=torch shares memory between instances on Linux only (memfd)")
    file = os.memfd_create(name)
    stack.callback(os.close, file)
    os.ftruncate(file, num_bytes)
    return file


def disk_file(stack: ExitStack, directory: Path) -> int:
    return stack.enter_context(tempfile.TemporaryFile(dir=directory)).fileno()


def write_all(file: int, content: memoryview, at: int) -> None:
    """Writes all of `content` at `at`: the kernel takes at most 2 GiB at a time."""
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], at + written)


def read_all(file: int, into: memoryview, at: int) -> None:
    """Fills `into` with what is in the file from `at` on."""
    read = 0
    while read < len(into):
        got = os.preadv(file, [into[read:]], at + read)
        if got == 0:
            raise EOFError(f"a model's file ends before byte {at + len(into)}")
        read += got
