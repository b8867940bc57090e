"""A simulated device for pooled instances: `harness.pooled.device.Device` in virtual time.

Bytes cross the links of `harness.sim.network`, so loads and KV copies share what they share in a
node. Each kind of copy has a stream of its own (Aegaeon §5.2–5.3) and none has priority: neither
CUDA nor PCIe knows one between copies, they take turns in small pieces. What a copy takes from
the kernels running beside it, a few per cent of the memory bandwidth, is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness.clock import Event
from harness.cost.model import CostModel
from harness.device.location import Location, dram
from harness.device.topology import Link
from harness.engine_api import Experiment
from harness.errors import InstanceLost
from harness.model_spec import ModelSpec
from harness.pooled.blocks import SlabPool, device_shape
from harness.pooled.device import KvCopy
from harness.pooled.plan import device_weight_bytes
from harness.sim.compute import Compute
from harness.sim.config import SimPoolConfig
from harness.sim.instance import SimInstance, no_death
from harness.sim.network import Channel, Network


class SimDevice:
    """The GPUs `gpus` of a node as one: each has its shard of the weights and of the KV."""

    on_lost: Callable[[InstanceLost], None]  # the instance that is made of it sets it

    def __init__(
        self, name: str, gpus: list[Location], config: SimPoolConfig, block_tokens: int,
        experiment: Experiment, cost: Callable[[ModelSpec], CostModel], network: Network,
    ) -> None:  # fmt: skip
        self.name, self.node = name, gpus[0].node
        self._gpus, self._models, self._config = tuple(gpus), experiment.models, config
        self._cost, self._network = cost, network
        self._loop, self._recorder = experiment.loop, experiment.recorder
        self.compute = Compute(self._loop)
        self.died, self.may_fail = no_death, False  # as of a SimInstance
        hardware, models = experiment.hardware, experiment.models
        achieved = hardware.calibration.memory_efficiency
        self._memory_bytes_per_s = hardware.memory_bandwidth_bytes_per_s * achieved
        self._weight_bytes = {name: device_weight_bytes(spec) for name, spec in models.items()}
        self._block_bytes = {
            name: device_shape(spec, block_tokens).block_bytes for name, spec in models.items()
        }
        self._kv_to: dict[int, Channel] = {}  # node -> of the copies to its DRAM
        self._kv_from: dict[int, Channel] = {}
        self._pageable = Link(f"pageable copies to {name}", config.pageable_bytes_per_s)

    def executor(self, model: str, kv: SlabPool) -> SimInstance:
        spec = self._models[model]
        made = SimInstance(self.name, spec, kv, self._cost(spec), self._loop, self._recorder)
        made.compute, made.may_fail, made.died = self.compute, self.may_fail, self.died
        return made

    async def _answer(self) -> None:
        """Comes at the end of an operation: the dead give none."""
        dead = False
        try:
            await self.died()
        except InstanceLost:
            dead = True
        if dead:  # behind the handler: mypyc's coroutines crash if closed within one
            await self._loop.wait(Event(self._loop))

    async def load(
        self, model: str, at_bytes: int, source: Location, *, staged: bool, stop: Event | None
    ) -> bool:
        num_bytes, complete = self._weight_bytes[model], True
        if stop is not None:
            complete = await self._network.transfer_until(
                stop, source, self._gpus, num_bytes,
                stream="weights", chunk_bytes=self._config.chunk_bytes,
            )  # fmt: skip
        else:
            pace = None if staged else self._pageable
            await self._network.transfer(source, self._gpus, num_bytes, stream="weights", pace=pace)
        if self.may_fail:
            await self._answer()
        return complete

    async def relocate(self, model: str, from_bytes: int, to_bytes: int) -> None:
        """Every byte is read and written once."""
        num_bytes = self._weight_bytes[model]
        await self._loop.sleep(2 * num_bytes / self._memory_bytes_per_s)
        if self.may_fail:
            await self._answer()

    def copy_out(self, copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        channel = self._kv_to.get(copy.node)
        if channel is None:
            channel = self._network.channel(self._gpus, dram(copy.node), "kv")
            self._kv_to[copy.node] = channel
        self._copy(channel, copy, on_end)

    def copy_in(self, copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        channel = self._kv_from.get(copy.node)
        if channel is None:
            channel = self._network.channel(dram(copy.node), self._gpus, "kv")
            self._kv_from[copy.node] = channel
        self._copy(channel, copy, on_end)

    def _copy(self, channel: Channel, copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        num_bytes = copy.num_blocks * self._block_bytes[copy.model]
        ended = self._answered if self.may_fail else self._ended
        self._network.send(channel, num_bytes, partial(ended, on_end))

    def _ended(self, on_end: Callable[[bool], None]) -> None:
        on_end(True)

    def _answered(self, on_end: Callable[[bool], None]) -> None:
        self._loop.start(self._answer_first(on_end), name=f"{self.name}: answer")

    async def _answer_first(self, on_end: Callable[[bool], None]) -> None:
        await self._answer()
        on_end(True)

    async def restart(self) -> None:
        await self._loop.sleep(self._config.restart_s)
        if self.may_fail:
            await self._answer()

    async def collect_garbage(self) -> None:
        await self._loop.sleep(self._config.collect_s)
        if self.may_fail:
            await self._answer()
