"""The device below a pooled instance: what an engine must be able to do, and nothing more.

`harness.sim.device` lets virtual time pass; `harness.engine.device` has a worker process move
real bytes. Which bytes, when and where to is decided above, once (`harness.pooled.instance`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from harness.clock import Event
from harness.device.instance import Instance
from harness.device.location import Location
from harness.errors import InstanceLost
from harness.pooled.blocks import SlabPool
from harness.pooled.slab import Run


class KvCopy:
    """The first `num_blocks` blocks of one request, from one side of the bus to the other, one to
    one: runs in the device's KV region (of each of its GPUs) and in the host cache of `node`."""

    def __init__(
        self, model: str, node: int, num_blocks: int, device_runs: Sequence[Run],
        host_runs: Sequence[Run],
    ) -> None:  # fmt: skip
        self.model, self.node, self.num_blocks = model, node, num_blocks
        self.device_runs, self.host_runs = device_runs, host_runs


class Device(Protocol):
    """Once it has died, what is awaited of it never ends; `on_lost` is called when that is known.
    Raises InstanceLost instead where no fault is planned."""

    name: str
    node: int
    on_lost: Callable[[InstanceLost], None]

    def executor(self, model: str, kv: SlabPool) -> Instance:
        """What runs batches of `model`, its KV in blocks of `kv` and its weights where the latest
        `load` or `relocate` put them."""
        ...

    async def load(
        self, model: str, at_bytes: int, source: Location, *, staged: bool, stop: Event | None
    ) -> bool:
        """Brings the weights of `model` to the weights buffer at `at_bytes`.

        `source`: the DRAM or the SSD of this node. `staged`: chunked and pipelined through the
        page-locked stage buffer; else as a tensor library loads a checkpoint, tensor by tensor
        from pageable memory. With `stop` it may be broken off between chunks once that is set.
        Returns whether the weights are all there.
        """
        ...

    async def relocate(self, model: str, from_bytes: int, to_bytes: int) -> None:
        """Copies the weights within the buffer, on the device."""
        ...

    def copy_out(self, copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        """Begins a copy from device to host, which runs beside `execute`, in a stream of its own.
        `on_end(True)` is called once the last byte has come, and not before this returns."""
        ...

    def copy_in(self, copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        """Does so from host to device. `on_end(False)`: the host has died before the last byte
        came."""
        ...

    async def restart(self) -> None:
        """Ends the inference engine and starts it anew: process, libraries, profiling, KV cache.
        No weights and no KV are left on the device."""
        ...

    async def collect_garbage(self) -> None:
        """Has the tensor library give back the memory that it caches."""
        ...
