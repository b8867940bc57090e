"""The weights buffer: what is loaded, prefetched and adopted never lies where it should not."""

from dataclasses import replace

from harness.clock import Event, Loop, VirtualLoop
from harness.device.location import Location, Medium
from harness.pooled.host import Host, SharedByPool
from harness.pooled.plan import MemoryPlan, PoolConfig, device_weight_bytes
from harness.pooled.weights import WeightsBuffer
from harness.records.record import Recorder
from tests.running import model_spec

SPEC = model_spec("tiny-llama")
MODELS = {name: replace(SPEC, seed=i) for i, name in enumerate(["a", "b", "c"])}
LOAD_S = 5.0


class SlowDevice:
    """Loads take LOAD_S; keeps where each source was, and which loads are under way."""

    name, node = "device", 0

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.under_way: set[tuple[str, int]] = set()
        self.sources: list[tuple[str, Medium]] = []

    async def load(
        self, model: str, at_bytes: int, source: Location, *, staged: bool, stop: Event | None
    ) -> bool:
        self.sources.append((model, source.medium))
        assert all(at != at_bytes for _, at in self.under_way), "two loads to one place"
        self.under_way.add((model, at_bytes))
        stopped = await self._loop.wait(stop or Event(self._loop), until=self._loop.now + LOAD_S)
        self.under_way.remove((model, at_bytes))
        return not stopped

    async def relocate(self, model: str, from_bytes: int, to_bytes: int) -> None:
        await self._loop.sleep(0.1)


def started(cache_models: int) -> tuple[VirtualLoop, SlowDevice, WeightsBuffer]:
    loop = VirtualLoop()
    device = SlowDevice(loop)
    config = PoolConfig(
        memory_share=1.0, min_kv_share=0.5, slab_bytes=1, host_slab_bytes=2**20,
        host_kv_bytes=2**20, model_cache_bytes=cache_models * SPEC.weight_bytes,
    )  # fmt: skip
    host = Host(0, config, loop)
    room = 3 * device_weight_bytes(SPEC)
    shared = SharedByPool(MODELS, MemoryPlan(room, 1, 1, 1), loop, Recorder([]))
    buffer = WeightsBuffer(device, host, shared)  # type: ignore[arg-type]
    return loop, device, buffer


def test_nothing_is_prefetched_behind_weights_that_are_about_to_go() -> None:
    loop, device, buffer = started(cache_models=3)

    async def arrival() -> None:
        await loop.wait(buffer._prefetch_over)  # when the broken-off prefetch of b is over
        if buffer.can_prefetch("c"):
            buffer.prefetch("c")

    async def main() -> None:
        await buffer.load("a", staged=True)
        buffer.prefetch("b")
        loop.spawn(arrival(), name="an arrival in the same instant, first in line")
        await loop.sleep(0.1)
        loading = loop.spawn(buffer.load("c", staged=True), name="a switch to c")
        await loop.sleep(1.0)
        assert device.under_way == {("c", 0)}
        await loop.wait(loading.finished)
        assert (buffer.running, buffer.prefetched) == ("c", None)
        buffer.prefetch("a")
        await loop.sleep(LOAD_S / 2)
        assert buffer.prefetched is None, "half of it is there"
        await buffer.adopt()
        assert buffer.running == "a"

    loop.run(main())


def test_a_model_is_cached_once_all_of_it_has_been_read() -> None:
    loop, device, buffer = started(cache_models=1)

    async def main() -> None:
        await buffer.load("a", staged=True)
        buffer.prefetch("b")
        await loop.sleep(1.0)
        await buffer.load("a", staged=True)  # breaks the prefetch of b off
        await buffer.load("b", staged=True)
        await buffer.load("b", staged=True)

    loop.run(main())
    ssd, dram = Medium.SSD, Medium.DRAM
    assert device.sources == [("a", ssd), ("b", ssd), ("a", dram), ("b", ssd), ("b", dram)]
