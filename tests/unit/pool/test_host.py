"""The host's KV cache: room is given in the order in which it was asked for."""

from harness.clock import Event, Loop, VirtualLoop
from harness.device.memory import KvShape
from harness.pooled.host import Host
from harness.pooled.plan import PoolConfig

SMALL = KvShape(num_layers=1, num_kv_heads=1, head_dim=8, dtype_bytes=2, block_tokens=16)
NUM_BLOCKS = 8


def host_of(kv_bytes: int, loop: Loop) -> Host:
    """Its KV cache has one slab."""
    config = PoolConfig(
        memory_share=1.0, min_kv_share=0.5, slab_bytes=1, host_slab_bytes=kv_bytes,
        host_kv_bytes=kv_bytes, model_cache_bytes=1,
    )  # fmt: skip
    return Host(0, config, loop)


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    loop = VirtualLoop()
    size = NUM_BLOCKS * SMALL.block_bytes
    host = host_of(size, loop)
    served: list[str] = []

    async def ask(name: str, num_blocks: int) -> None:
        await host.reserve(host.slabs.pool(SMALL), num_blocks)
        served.append(name)

    async def main() -> None:
        held = [await host.reserve(host.slabs.pool(SMALL), 2) for _ in range(4)]
        loop.spawn(ask("large", 6), name="large")
        loop.spawn(ask("small", 2), name="small")
        for offsets in held:
            await loop.sleep(1.0)
            host.discard(offsets)
        await loop.sleep(1.0)

    loop.run(main())
    assert served == ["large", "small"]


def test_what_a_transfer_reads_is_given_out_only_after_it() -> None:
    loop = VirtualLoop()
    size = NUM_BLOCKS * SMALL.block_bytes
    host = host_of(size, loop)

    async def main() -> None:
        offsets = await host.reserve(host.slabs.pool(SMALL), NUM_BLOCKS)
        transfer = Event(loop)
        host.release_after(transfer, offsets)
        waiting = loop.spawn(host.reserve(host.slabs.pool(SMALL), 1), name="rule 3")
        await loop.sleep(1.0)
        assert not waiting.done
        host.reclaim(transfer)
        await loop.sleep(0.0)
        await loop.sleep(0.0)
        assert waiting.done

    loop.run(main())
