"""A device's HBM as systems use it: by layer, to the byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.device.memory import KvShape, OutOfMemory
from harness.sim.memory import DeviceMemory

GIB = 2**30
LAYER_BYTES = 550_000_000  # about a layer of Qwen-2.5-14B
KV = KvShape(num_layers=48, num_kv_heads=8, head_dim=128, dtype_bytes=2, block_tokens=16)
LAYERS = dict.fromkeys(range(48), LAYER_BYTES)


def a800() -> DeviceMemory:
    memory = DeviceMemory("node0/gpu0", 80 * GIB, activation_reserve_bytes=8 * GIB)
    memory.load("qwen", {**LAYERS, "embedding": 1_500_000_000})
    return memory


def test_kv_is_192_kib_a_token_and_gets_what_weights_and_reserve_leave() -> None:
    """192 KB a token: KunServe §4.2, for a 14B model."""
    assert KV.block_bytes == 16 * 192 * 1024
    memory = a800()
    assert memory.weight_bytes == 48 * LAYER_BYTES + 1_500_000_000
    blocks = memory.more_kv_blocks(KV, 48)
    memory.resize_kv(KV, range(48), blocks)
    assert memory.kv_bytes == blocks * KV.block_bytes
    assert 0 <= memory.free_bytes < KV.block_bytes
    with pytest.raises(OutOfMemory):
        memory.resize_kv(KV, range(48), blocks + 1)


def test_dropping_half_of_the_layers_makes_room_for_their_bytes_of_kv() -> None:
    """KunServe: the instance keeps the first half of the layers, weights and KV."""
    memory = a800()
    blocks = memory.more_kv_blocks(KV, 48)
    memory.resize_kv(KV, range(48), blocks)
    left_over = memory.free_bytes
    memory.drop("qwen", range(24, 48))
    memory.resize_kv(KV, range(24, 48), 0)
    more = memory.more_kv_blocks(KV, 24)
    freed = 24 * (LAYER_BYTES + blocks * KV.layer_bytes)
    assert more == (left_over + freed) // (24 * KV.layer_bytes)
    memory.resize_kv(KV, range(24), blocks + more)
    assert memory.kv_blocks(KV, 0) == blocks + more
    assert memory.kv_blocks(KV, 47) == 0
    with pytest.raises(OutOfMemory, match="node0/gpu0"):
        memory.load("qwen", {24: LAYER_BYTES})


def test_a_resize_that_does_not_fit_changes_no_layer() -> None:
    memory = a800()
    memory.resize_kv(KV, range(48), 10)
    with pytest.raises(OutOfMemory):
        memory.resize_kv(KV, range(48), 10**6)
    assert {memory.kv_blocks(KV, layer) for layer in range(48)} == {10}


def test_loading_what_is_loaded_costs_nothing_and_dropping_what_is_not_gives_nothing() -> None:
    memory = a800()
    free = memory.free_bytes
    memory.load("qwen", LAYERS)
    memory.drop("other", range(48))
    assert memory.free_bytes == free


def test_two_models_and_two_shapes_are_kept_apart() -> None:
    other = KvShape(num_layers=2, num_kv_heads=4, head_dim=64, dtype_bytes=2, block_tokens=16)
    memory = a800()
    memory.load("small", {0: 100, 1: 100})
    memory.resize_kv(KV, [0], 3)
    memory.resize_kv(other, [0], 5)
    memory.drop("small", [0])
    assert memory.weight_bytes == 48 * LAYER_BYTES + 1_500_000_000 + 100
    assert (memory.kv_blocks(KV, 0), memory.kv_blocks(other, 0)) == (3, 5)


def test_a_reserve_larger_than_the_device_is_refused() -> None:
    with pytest.raises(OutOfMemory, match="gpu has 10 of 10 bytes free, and 11 more"):
        DeviceMemory("gpu", 10, activation_reserve_bytes=11)


@settings(deadline=None)
@given(st.integers(1, 48), st.integers(0, 48))
def test_more_kv_blocks_is_exactly_what_fits(num_layers: int, loaded: int) -> None:
    memory = DeviceMemory("gpu", 40 * GIB, activation_reserve_bytes=GIB)
    memory.load("qwen", dict.fromkeys(range(loaded), LAYER_BYTES))
    blocks = memory.more_kv_blocks(KV, num_layers)
    memory.resize_kv(KV, range(num_layers), blocks)
    with pytest.raises(OutOfMemory):
        memory.resize_kv(KV, range(num_layers), blocks + 1)
